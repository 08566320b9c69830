"""How large an engine may be: the memory that a setup takes of each device, and so how many pages its pool gets.

`memory` counts the bytes of each kind; here they are those of a `Setup`.
"""

import logging
from dataclasses import replace
from typing import Any

from jaxengine.cache.limits import Limits
from jaxengine.model.adapters import abstract_adapters
from jaxengine.model.adapters import held_bytes as stack_bytes
from jaxengine.startup.defaults import GPU_DECODE, derive_limits
from jaxengine.startup.memory import (
    RESERVED_BYTES,
    Demand,
    check_host,
    clamp_total,
    draft_page_bytes,
    fitting_pages,
    image_bytes,
    page_bytes,
    pool_pages,
    sampler_bytes,
    slot_bytes,
    temporary_bytes,
    tuning_bytes,
)
from jaxengine.startup.setup import Setup
from jaxengine.weights.loading import abstract_drafter, abstract_parameters, array_bytes, held_bytes, largest_bytes

logger = logging.getLogger(__name__)

TRIAL_PAGES = 1024  # of the compile that tells how much memory a step needs
# States of requests take one part in so many, at most, of what weights leave, and snapshots one; the rest is for keys
# and values.
STATES_SHARE, SNAPSHOTS_SHARE = 3, 6
OF_PROMPT = 2  # snapshots: with one, that of its last page takes over that of what others have in common with it


def limits_of(setup: Setup) -> Limits:
    """The limits that options, model and device give, with snapshots where layers keep states."""
    limits = derive_limits(setup.options, setup.spec, setup.device, setup.drafter)
    if not setup.spec.recurrent_layers:
        return limits
    if setup.device.on_host:
        return replace(limits, snapshots=_snapshots(setup, limits))
    weights = held_bytes(_weights(setup)) + array_bytes(_drafter(setup))
    room = setup.place.memory_bytes - weights - RESERVED_BYTES
    if setup.options.max_batch_size is None:
        limits = _with_room_for_states(setup, room)
    states = _slot_bytes(setup, limits)
    share = max(0, min(room // SNAPSHOTS_SHARE, (room - states) // 2))  # the operator may want many requests
    snapshots = _snapshots(setup, limits, share // (states // limits.state_slots))
    if setup.prefix_cache and setup.options.state_snapshots is None and not snapshots:
        logger.warning("no prefix cache: states of prompts would be kept, and there is no room for any")
    return replace(limits, snapshots=snapshots)


def _with_room_for_states(setup: Setup, room: int) -> Limits:
    """Those of a batch with no more requests than `STATES_SHARE` of `room`, in bytes, allows: of Qwen3.5-27B a request
    takes 154 MB, and 256 of them 39 GB.
    """

    def of_rows(rows: int) -> Limits:
        options = replace(setup.options, max_batch_size=rows)
        return derive_limits(options, setup.spec, setup.device, setup.drafter)

    sizes = map(of_rows, GPU_DECODE[::-1])
    return next((each for each in sizes if STATES_SHARE * _slot_bytes(setup, each) <= room), of_rows(1))


def _snapshots(setup: Setup, limits: Limits, most: int | None = None) -> int:
    """How many states are kept of prefixes: as many as the operator wants; or half as many as of requests, at least as
    many as one prompt saves, and no more than `most`.
    """
    if not setup.prefix_cache:
        return 0
    if setup.options.state_snapshots is not None:
        return setup.options.state_snapshots
    half = max(OF_PROMPT, limits.max_batch_size // 2)
    return half if most is None else min(half, most)


def _slot_bytes(setup: Setup, limits: Limits) -> int:
    return slot_bytes(limits, setup.spec, setup.dtype, setup.mesh.size)


def size(setup: Setup, limits: Limits) -> tuple[Limits, int]:
    """`limits` as far as memory allows, and the pages of the pool.

    Raises:
        DoesNotFit: with numbers.
    """
    temporaries = 0 if setup.device.on_host else planned_temporaries(setup, limits)
    return fit(setup, limits, demand_of(setup, limits, temporaries))


def fit(setup: Setup, limits: Limits, demand: Demand) -> tuple[Limits, int]:
    """`size` where the demand is known."""
    pages = fitting_pages(limits, setup.spec, setup.cache_dtype, setup.place, demand)
    limits = clamp_total(setup.options, limits, pages)
    pool = pool_pages(setup.options, limits, setup.device, pages)
    if setup.device.on_host:
        check_host(setup.options, demand, pool)
    return limits, pool


def planned_temporaries(setup: Setup, limits: Limits) -> int:
    """Bytes on each device, as XLA plans them: this compiles."""
    shapes = setup.shapes(limits, TRIAL_PAGES)
    return temporary_bytes(setup.compiler(shapes, _weights(setup) | _drafter(setup)))


def demand_of(setup: Setup, limits: Limits, temporaries: int) -> Demand:
    """What each device must hold, in bytes; `temporaries` is what a step needs besides."""
    devices, page, weights = setup.mesh.size, limits.page_size, _weights(setup)
    return Demand(
        weights=held_bytes(weights),
        drafter=array_bytes(_drafter(setup)),
        adapters=stack_bytes(abstract_adapters(setup.spec, setup.adapters.shapes, setup.mesh, setup.device)),
        sampler=sampler_bytes(limits, setup.spec),
        temporaries=temporaries,
        tuning=0 if setup.device.on_host else tuning_bytes(largest_bytes(weights), setup.place.memory_bytes),
        page=page_bytes(setup.spec, page, setup.cache_dtype, devices)
        + draft_page_bytes(setup.drafter, page, setup.dtype, devices),
        images=image_bytes(limits, setup.spec, setup.dtype, devices),
        slots=_slot_bytes(setup, limits),
    )


def _weights(setup: Setup) -> dict[str, Any]:
    return abstract_parameters(setup.spec, setup.mesh, setup.dtype, setup.device, setup.formats)


def _drafter(setup: Setup) -> dict[str, Any]:
    return abstract_drafter(setup.drafter, setup.mesh, setup.dtype, setup.device) if setup.drafter else {}

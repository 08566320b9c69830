"""How large an engine may be: the memory that a setup takes of each device, and so how many pages its pool gets.

`memory` counts the bytes of each kind; here they are those of a `Setup`.
"""

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

TRIAL_PAGES = 1024  # of the compile that tells how much memory a step needs
STATES_SHARE = 3  # states take one part in so many, at most, of what weights leave; the rest is for keys and values


def limits_of(setup: Setup) -> Limits:
    """The limits that options, model and device give. On a GPU, where layers keep states of each request, a batch has
    no more requests than `STATES_SHARE` allows, unless the operator set how many: of Qwen3.5-27B a request takes
    154 MB, and 256 of them 39 GB.
    """
    options, spec, device = setup.options, setup.spec, setup.device
    limits = derive_limits(options, spec, device, setup.drafter)
    if not spec.recurrent_layers or device.on_host or options.max_batch_size is not None:
        return limits
    room = (setup.place.memory_bytes - held_bytes(_weights(setup)) - RESERVED_BYTES) // STATES_SHARE
    sizes = (
        derive_limits(replace(options, max_batch_size=rows), spec, device, setup.drafter) for rows in GPU_DECODE[::-1]
    )
    fitting = (each for each in sizes if slot_bytes(each, spec, setup.dtype, setup.mesh.size) <= room)
    return next(fitting, derive_limits(replace(options, max_batch_size=1), spec, device, setup.drafter))


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
        slots=slot_bytes(limits, setup.spec, setup.dtype, devices),
    )


def _weights(setup: Setup) -> dict[str, Any]:
    return abstract_parameters(setup.spec, setup.mesh, setup.dtype, setup.device, setup.formats)


def _drafter(setup: Setup) -> dict[str, Any]:
    return abstract_drafter(setup.drafter, setup.mesh, setup.dtype, setup.device) if setup.drafter else {}

"""Whether a model fits on some devices, for how many requests, and the least time that its steps take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp

from jaxengine.cache.limits import Limits
from jaxengine.capacity.machine import Machine
from jaxengine.capacity.pictures import picture_cost
from jaxengine.capacity.roofline import Cost, step_cost
from jaxengine.capacity.temporaries import estimated_temporaries
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.table import EngineOptions
from jaxengine.request.interface import OpenModel
from jaxengine.startup.memory import Demand, gib
from jaxengine.startup.place import DoesNotFit
from jaxengine.startup.setup import Setup
from jaxengine.startup.sizing import TRIAL_PAGES, demand_of, fit, limits_of

Temporaries = Callable[[Setup, Limits], int]
CONTEXTS = tuple(1024 * 4**power for power in range(6))  # tokens, 1024 to a million
REDUCES = 2  # of a layer: behind attention, and behind the MLP


def estimated(setup: Setup, limits: Limits) -> int:
    """`Temporaries` without a compiler; on a host they are not counted."""
    if setup.device.on_host:
        return 0
    shapes = setup.shapes(limits, TRIAL_PAGES)
    return estimated_temporaries(shapes, setup.mesh.size, setup.device, setup.formats)


@dataclass(frozen=True)
class Need:
    """What an engine on `setup.mesh.size` devices of `machine` needs, before it is known whether there is so much.

    limits: with the longest request that options and model allow.
    """

    machine: Machine
    setup: Setup
    limits: Limits
    demand: Demand

    @classmethod
    def of(
        cls,
        model: OpenModel,
        options: EngineOptions,
        machine: Machine,
        adapters: Sequence[NamedAdapter] = (),
        temporaries: Temporaries = estimated,
    ) -> "Need":
        """Raises ValueError where options, model and devices contradict each other."""
        setup = Setup.decide(model, options, adapters, machine.place(options.tensor_parallel))
        limits = limits_of(setup)
        return cls(machine, setup, limits, demand_of(setup, limits, temporaries(setup, limits)))

    def fit(self) -> "Fit":
        """Raises DoesNotFit, with numbers."""
        limits, pages = fit(self.setup, self.limits, self.demand)
        made = Fit(self.machine, self.setup, limits, self.limits.max_total_tokens, self.demand, pages - 1)
        if made.unused < 0:  # only on a host, whose pool is not made to fit
            raise DoesNotFit(f"weights and cache take {gib(-made.unused)} more than there is")
        return made


@dataclass(frozen=True)
class Fit:
    """An engine that fits.

    limits: with max_total_tokens as far as memory allows.
    asked: max_total_tokens without regard to memory.
    pages: of the pool, without the sink.
    """

    machine: Machine
    setup: Setup
    limits: Limits
    asked: int
    demand: Demand
    pages: int

    @property
    def devices(self) -> int:
        return self.setup.mesh.size

    @property
    def replicas(self) -> int:
        """Engines of this size that the machine has devices for."""
        return self.machine.count // self.devices

    @property
    def cache_bytes(self) -> int:
        return self.pages * self.demand.page

    @property
    def unused(self) -> int:
        """Bytes of each device that the engine may take and has no use for."""
        return self.machine.usable - self.machine.driver - self.demand.fixed - self.cache_bytes

    @property
    def contexts(self) -> list[int]:
        """Lengths of requests to tell of: a few, and the longest."""
        longest = self.limits.max_total_tokens
        return [*(tokens for tokens in CONTEXTS if tokens < longest), longest]

    def requests(self, tokens: int) -> int:
        """How many requests of `tokens` tokens run at once."""
        return min(self.pages // self.limits.peak_pages(tokens), self.limits.max_batch_size)

    def decode_seconds(self, rows: int, tokens: int) -> float | None:
        """The least time of a step that gives each of `rows` requests the token behind `tokens - 1` others."""
        return self._seconds(self._cost(rows, 1, tokens - 1), rows)

    def prefill_seconds(self, tokens: int) -> float | None:
        """The least time to the first token behind a prompt of `tokens`. None of an encoder's, which is not counted."""
        if self.setup.spec.encoder:
            return None
        budget, total = self.limits.token_budget, 0.0
        for done in range(0, tokens, budget):
            new = min(budget, tokens - done)
            seconds = self._seconds(self._cost(1, new, done), new)
            if seconds is None:
                return None
            total += seconds
        return total

    @property
    def picture_patches(self) -> int:
        """Of the largest picture that is taken; 0 where the model does not see."""
        return self.limits.image_patches

    def picture_seconds(self) -> float | None:
        """The least time in which it is encoded, before its tokens are computed."""
        if not self.picture_patches:
            return None
        gpu, cost = self.machine.gpu, picture_cost(self.setup.spec, self.picture_patches, self._itemsize)
        if gpu is None or not gpu.bandwidth:
            return None
        return Cost(cost.bytes / self.devices, cost.operations / self.devices).seconds(gpu.bandwidth, gpu.rate)

    def _cost(self, rows: int, new: int, context: int) -> Cost:
        setup = self.setup
        cached = int(jnp.dtype(setup.cache_dtype).itemsize)
        return step_cost(setup.spec, rows, new, context, cached, self._itemsize, setup.formats)

    def _seconds(self, cost: Cost, tokens: int) -> float | None:
        gpu = self.machine.gpu
        if gpu is None or not gpu.bandwidth:
            return None
        share = Cost(cost.bytes / self.devices, cost.operations / self.devices)
        return share.seconds(gpu.bandwidth, gpu.rate) + self._reducing_seconds(tokens)

    def _reducing_seconds(self, tokens: int) -> float:
        """Of adding up what the devices have computed of `tokens`."""
        gpu, spec = self.machine.gpu, self.setup.spec
        if gpu is None or self.devices == 1:
            return 0.0
        moved = 2 * (self.devices - 1) / self.devices * tokens * spec.hidden_size * self._itemsize
        return REDUCES * spec.num_layers * max(gpu.reduce_seconds, moved / gpu.link)

    @cached_property
    def _itemsize(self) -> int:
        return int(jnp.dtype(self.setup.dtype).itemsize)

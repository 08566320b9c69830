"""What an engine will run, and on what: decided, checked and sized before the first weight is read."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jax.sharding import Mesh

from jaxengine.architecture.drafter import DrafterSource, DrafterSpec
from jaxengine.architecture.model import ModelSpec
from jaxengine.architecture.parameters import ParameterSource
from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.cache.limits import Limits
from jaxengine.cache.page_pool import PagePool
from jaxengine.cache.page_tables import PageTables
from jaxengine.device import DeviceTraits
from jaxengine.engine.adapter_registry import AdapterRegistry
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.executable_store import ExecutableStore
from jaxengine.executor.runner import Runner
from jaxengine.executor.shapes import Shapes
from jaxengine.executor.step_model import StepModel
from jaxengine.model.adapters import abstract_adapters
from jaxengine.model.adapters import held_bytes as stack_bytes
from jaxengine.model.vision.packing import needed
from jaxengine.ops import choose_backend
from jaxengine.ops.cache import storage_dtype
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.pooling import POOLINGS
from jaxengine.options.speculation import Speculation
from jaxengine.options.table import EngineOptions
from jaxengine.request.checks import check_ends
from jaxengine.request.interface import AdapterRefused, Description, OpenModel
from jaxengine.rpc.limits import MAX_IMAGES, WHOLE_VOCABULARY
from jaxengine.rpc.page_keys import cache_name
from jaxengine.scheduler.image_planner import ImagePlanner
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.sharding import check_divisible
from jaxengine.speculation.speculator import Speculator
from jaxengine.startup.adapters import AdapterSetup
from jaxengine.startup.compile_recipe import CompileRecipe
from jaxengine.startup.defaults import resolve_cache_dtype, resolve_dtype, resolve_speculation
from jaxengine.startup.draft_model import fitted
from jaxengine.startup.memory import (
    Demand,
    clamp_total,
    draft_page_bytes,
    fitting_pages,
    image_bytes,
    page_bytes,
    pool_pages,
    sampler_bytes,
    temporary_bytes,
    tuning_bytes,
)
from jaxengine.startup.place import Place
from jaxengine.startup.tower import check_tower
from jaxengine.weights.kv_heads import replicate_adapters, replicate_heads
from jaxengine.weights.kv_scales import calibrated, scaling
from jaxengine.weights.loading import (
    abstract_drafter,
    abstract_parameters,
    array_bytes,
    held_bytes,
    largest_bytes,
    load_drafter,
    load_parameters,
)
from jaxengine.weights.quantization import check_quantizable, resolve, weight_formats
from jaxengine.weights.wider_experts import widen_experts

logger = logging.getLogger(__name__)

TRIAL_PAGES = 1024  # of the compile that tells how much memory a step needs


@dataclass(frozen=True)
class Setup:
    """What an engine will run, and on what."""

    options: EngineOptions
    source: ParameterSource
    place: Place
    dtype: str
    cache_dtype: str
    attention: str
    quantize: str | None  # what is made of weights in floats, see `resolve`
    adapters: AdapterSetup
    speculation: Speculation | None
    drafter: DrafterSpec | None  # None where nothing that was learnt drafts
    drafter_source: DrafterSource | None

    @classmethod
    def decide(
        cls,
        model: OpenModel,
        options: EngineOptions,
        adapters: Sequence[NamedAdapter] = (),
        place: Place | None = None,
    ) -> "Setup":
        """`place` is of this machine if not given. Raises ValueError where options, model and devices contradict each
        other.
        """
        place = place or Place.here(options.tensor_parallel)
        mesh, device = place.mesh, place.device
        source = replicate_heads(model.source, mesh.size)
        reader = model.adapters and replicate_adapters(model.adapters, source)
        source = widen_experts(source, mesh.size, device)
        spec = source.spec
        check_divisible(spec, mesh.size)
        quantize = resolve(options.quantize, model.quantization, device.on_host)
        check_quantizable(spec, quantize, device)
        check_ends(model.eos_token_ids)
        learnt = model.drafter
        speculation = resolve_speculation(options, learnt.spec if learnt else None)
        if speculation and spec.state_space:
            raise ValueError("speculate: this model's layers keep states, which cannot take a rejected token back")
        dtype = resolve_dtype(options, spec, source.dtype, device)
        wanted = learnt is not None and _drafts(learnt, speculation)
        learnt = fitted(learnt, spec, options.attention, mesh.size, device, dtype) if learnt and wanted else None
        cache_dtype = resolve_cache_dtype(options, spec, dtype)
        attention = choose_backend(options.attention, device, spec.head_dim, spec.group, dtype, cache_dtype)
        check_tower(spec, options.attention, device, dtype)
        source = calibrated(source, cache_dtype)
        setup = AdapterSetup.decide(reader, options, adapters, dtype)
        decided = (source, place, dtype, cache_dtype, attention, quantize, setup)
        made = cls(options, *decided, speculation, _first_guesses(learnt, speculation), learnt)
        if spec.head.missing and not made.pooling(model):
            raise ValueError(
                f"the checkpoint has no head, and pools by {model.pooling}: name another way with --pooling"
            )
        return made

    @property
    def spec(self) -> ModelSpec:
        return self.source.spec

    @property
    def mesh(self) -> Mesh:
        return self.place.mesh

    @property
    def device(self) -> DeviceTraits:
        return self.place.device

    def within(self, device_bytes: int) -> "Setup":
        """The same where a device has so much memory; 0 where it is the host's."""
        return replace(self, place=replace(self.place, told_bytes=device_bytes or None))

    @property
    def device_bytes(self) -> int:
        """The memory of a device of this machine, 0 where it is the host's. Raises DoesNotFit if it does not tell."""
        return 0 if self.device.on_host else self.place.memory_bytes

    @cached_property
    def formats(self) -> dict[str, WeightFormat]:
        """Of the matrices that devices hold quantised."""
        return weight_formats(self.source, self.quantize, self.device, self.mesh.size)

    @property
    def prefix_cache(self) -> bool:
        return self.options.prefix_cache and self.spec.by_position

    @property
    def top(self) -> int:
        """The most alternatives that are reported for a token."""
        asked = self.options.max_top_logprobs
        return self.spec.tokens if asked == WHOLE_VOCABULARY else min(asked, self.spec.tokens)

    @property
    def stored_cache_dtype(self) -> str:
        """The type of the caches' arrays: that of the cache, or integers of its bits, see `storage_dtype`."""
        as_bits = self.device.cache_as_bits and not self.spec.state_space
        return storage_dtype(self.cache_dtype) if as_bits else self.cache_dtype

    def pooling(self, model: OpenModel) -> str:
        """Of embeddings; empty where none are made: a decoder behind an encoder reads no prompt, and hidden states that
        a further projection takes to the vocabulary's are not the model's last.
        """
        chosen = self.options.pooling or model.pooling
        last = self.spec.encoder is None and self.spec.embedding_width == self.spec.hidden_size
        return chosen if last and chosen in POOLINGS else ""

    def log_decisions(self) -> None:
        """Log what was decided, and what of it a user may not expect."""
        held = ", ".join(sorted({format.name for format in self.formats.values()})) or self.dtype
        stored = f"{self.dtype}, weights {held}, cache {self.cache_dtype}"
        logger.info("%s, on %d x %s, attention by %s", stored, self.mesh.size, self.device.kind, self.attention)
        if self.options.kv_cache_dtype != "auto":
            logger.info("keys and values %s", scaling(self.spec))
        elif self.spec.cache_scales:
            logger.info("this model was calibrated for a cache of 8 bits, kv_cache_dtype fp8 makes use of that")
        if self.options.prefix_cache and not self.spec.by_position:
            logger.info("no prefix cache: what this model keeps of a prompt depends on all of it")

    def shapes(self, limits: Limits, pages: int, pooling: str = "") -> Shapes:
        return Shapes(
            self.spec,
            limits,
            self.dtype,
            pages,
            limits.page_size,
            self.top,
            self.stored_cache_dtype,
            self.adapters.shapes,
            self.drafter,
            sums_hidden=pooling == "mean",
        )

    def compiler(self, shapes: Shapes, parameters: dict[str, Any], store: ExecutableStore | None = None) -> Compiler:
        model = StepModel.build(shapes, parameters, self.mesh, self.device, self.attention)
        return Compiler(shapes, model, self.mesh, self.device, store)

    def load(
        self, progress: Callable[[int, int], None], load: Callable[..., dict[str, Any]] = load_parameters
    ) -> dict[str, Any]:
        """All parameters, of the drafter too, on the devices. `progress` and `load` are as `load_parameters` has them
        and is.
        """
        parameters = load(self.source, self.mesh, self.dtype, self.device, progress, self.quantize)
        if self.drafter and self.drafter_source:
            parameters |= load_drafter(self.drafter, self.drafter_source, self.mesh, self.dtype, self.device)
        return parameters

    def recipe(self, shapes: Shapes) -> CompileRecipe:
        return CompileRecipe(shapes, self.device, self.attention, self.formats, self.mesh.size)

    def size(self, limits: Limits) -> tuple[Limits, int]:
        """`limits` as far as memory allows, and the pages of the pool.

        Raises:
            DoesNotFit: with numbers.
        """
        return self.fit(limits, self.demand(limits, 0 if self.device.on_host else self.temporaries(limits)))

    def fit(self, limits: Limits, demand: Demand) -> tuple[Limits, int]:
        """`size` where the demand is known."""
        fit = fitting_pages(limits, self.spec, self.cache_dtype, self.place, demand)
        limits = clamp_total(self.options, limits, fit)
        return limits, pool_pages(self.options, limits, self.device, fit)

    def temporaries(self, limits: Limits) -> int:
        """Bytes on each device, as XLA plans them: this compiles."""
        return temporary_bytes(self.compiler(self.shapes(limits, TRIAL_PAGES), self._weights() | self._drafter()))

    def demand(self, limits: Limits, temporaries: int) -> Demand:
        """What each device must hold; `temporaries` is what a step needs besides."""
        devices, page = self.mesh.size, limits.page_size
        return Demand(
            weights=held_bytes(self._weights()),
            drafter=array_bytes(self._drafter()),
            adapters=stack_bytes(abstract_adapters(self.spec, self.adapters.shapes, self.mesh, self.device)),
            sampler=sampler_bytes(limits, self.spec),
            temporaries=temporaries,
            tuning=0 if self.device.on_host else tuning_bytes(largest_bytes(self._weights()), self.place.memory_bytes),
            page=page_bytes(self.spec, page, self.cache_dtype, devices)
            + draft_page_bytes(self.drafter, page, self.dtype, devices),
            images=image_bytes(limits, self.spec, self.dtype, self.mesh.size),
        )

    def _weights(self) -> dict[str, Any]:
        return abstract_parameters(self.spec, self.mesh, self.dtype, self.device, self.formats)

    def _drafter(self) -> dict[str, Any]:
        return abstract_drafter(self.drafter, self.mesh, self.dtype, self.device) if self.drafter else {}

    def scheduler(self, model: OpenModel, limits: Limits, pages: int, speculator: Speculator | None) -> Scheduler:
        tables = PageTables(
            PagePool(pages, limits.page_size),
            limits.windows,
            limits.token_budget,
            model=cache_name(model.model_id, model.revision),
            prefix_cache=self.prefix_cache,
            whole_prompts=self.spec.vision is not None and self.spec.vision.horizon == "prompt",
        )
        return Scheduler(
            tables,
            limits.max_batch_size,
            images=self.image_planner(limits),
            rope_switch_length=self.spec.rope_switch_length,
            adapters=self.adapters.slots,
            speculator=speculator,
        )

    def image_planner(self, limits: Limits) -> ImagePlanner | None:
        """The images of prompts, of a model that sees."""
        vision = self.spec.vision
        if vision is None:
            return None
        largest = limits.see_shapes(vision)[-1]
        return ImagePlanner(
            limits.image_rows,
            vision.horizon,
            lambda pictures: largest.holds(needed(vision, pictures)),
            limits.image_run(vision),
        )

    def speculator(self, limits: Limits, runner: Runner) -> Speculator | None:
        if self.speculation is None:
            return None
        buckets, proposer = runner.buckets, (runner.draft or runner) if self.drafter else None
        return Speculator(self.speculation, limits.verify_buckets, buckets.can_verify, buckets.plain_size, proposer)

    def adapter_registry(self, model: OpenModel, runner: Runner) -> AdapterRegistry:
        """With the adapters that are named at start. Raises ValueError where one does not fit."""
        setup = self.adapters
        if setup.shapes is None:
            return AdapterRegistry()
        registry = AdapterRegistry(
            setup.reader, setup.shapes, runner.model.adapters, model=model.model_id, most=self.options.max_cpu_loras
        )
        for each, weights in setup.named:
            try:
                registry.load(each.name, each.path, weights=weights)
            except AdapterRefused as error:
                raise ValueError(f"adapter {each.name!r}: {error}") from error
        return registry

    def describe(self, model: OpenModel, limits: Limits, pages: int) -> Description:
        return Description(
            model_id=model.model_id,
            revision=model.revision,
            dtype=self.dtype,
            device_kind=self.device.kind,
            device_count=self.mesh.size,
            vocab_size=self.spec.tokens,
            eos_token_ids=tuple(model.eos_token_ids),
            max_total_tokens=limits.max_total_tokens,
            max_batch_prefill_tokens=limits.token_budget,
            max_batch_total_tokens=limits.tokens_of(pages - 1),
            max_batch_size=limits.max_batch_size,
            page_size=limits.page_size,
            pages_total=pages - 1,
            max_top_logprobs=self.top,
            prefix_cache=self.prefix_cache,
            cache_dtype=self.cache_dtype,
            decoder_start_token_id=self.spec.encoder.start_token if self.spec.encoder else None,
            max_adapters=self.adapters.slots,
            max_adapter_rank=self.adapters.rank,
            max_draft_tokens=limits.draft_tokens,
            pooling=self.pooling(model),
            hidden_size=self.spec.hidden_size,
            embeds_only=self.spec.head.missing,
            logits=self.spec.predicts_prompt,
            **self._describe_sight(limits),
        )

    def _describe_sight(self, limits: Limits) -> dict[str, Any]:
        """What a model that sees takes of pictures."""
        vision = self.spec.vision
        if vision is None:
            return {}
        tokens, longest = limits.see_shapes(vision)[-1].rows, limits.token_budget - limits.max_batch_size + 1
        return {
            "image_token_id": vision.token,
            "patch_values": vision.patch_values,
            "patch_dtype": "bfloat16" if self.dtype == "bfloat16" else "float32",
            "image_horizon": vision.horizon,
            "max_images": MAX_IMAGES,
            "max_image_patches": limits.image_patches,
            "max_image_tokens": tokens if vision.horizon == "token" else min(tokens, longest),
        }


def _drafts(learnt: DrafterSource, speculation: Speculation | None) -> bool:
    """Whether that is what drafts."""
    return speculation is not None and speculation.method == learnt.spec.method


def _first_guesses(learnt: DrafterSource | None, speculation: Speculation | None) -> DrafterSpec | None:
    """As much of the drafter as `speculation` uses."""
    if learnt is None or speculation is None:
        return None
    assert speculation.num_speculative_tokens is not None  # `resolve_speculation` has decided
    return learnt.spec.first(speculation.num_speculative_tokens)

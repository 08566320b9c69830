"""What an engine will run, and on what: decided and checked before the first weight is read.

How large it may be is in `sizing`.
"""

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
from jaxengine.device import DeviceTraits
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.executable_store import ExecutableStore
from jaxengine.executor.shapes import Shapes
from jaxengine.executor.step_model import StepModel
from jaxengine.ops.cache import storage_dtype
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.option import flag
from jaxengine.options.pooling import POOLINGS
from jaxengine.options.speculation import MTP, Speculation
from jaxengine.options.table import EngineOptions
from jaxengine.request.checks import check_ends
from jaxengine.request.interface import OpenModel
from jaxengine.rpc.limits import WHOLE_VOCABULARY
from jaxengine.sharding import check_divisible
from jaxengine.startup.adapters import AdapterSetup
from jaxengine.startup.attention import choose_for_layers
from jaxengine.startup.compile_recipe import CompileRecipe
from jaxengine.startup.defaults import resolve_cache_dtype, resolve_dtype, resolve_speculation
from jaxengine.startup.draft_model import fitted
from jaxengine.startup.place import Place
from jaxengine.startup.tower import check_tower
from jaxengine.weights.addressing import check_addressable
from jaxengine.weights.kv_heads import replicate_adapters, replicate_heads
from jaxengine.weights.kv_scales import calibrate_adapters, calibrated, scaling
from jaxengine.weights.loading import load_drafter, load_parameters
from jaxengine.weights.quantization import check_quantizable, resolve, weight_formats
from jaxengine.weights.wider_experts import widen_experts

logger = logging.getLogger(__name__)

OF_PICTURES = ("max_image_patches", "image_cache_tokens")


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
        learnt = _learnt(model, options)
        speculation = resolve_speculation(options, learnt.spec if learnt else None)
        dtype = resolve_dtype(options, spec, source.dtype, device)
        wanted = learnt is not None and _drafts(learnt, speculation)
        learnt = fitted(learnt, spec, options.attention, mesh.size, device, dtype) if learnt and wanted else None
        cache_dtype = resolve_cache_dtype(options, spec, dtype)
        attention = choose_for_layers(options.attention, device, spec, dtype, cache_dtype)
        check_tower(spec, options.attention, device, dtype)
        source = calibrated(source, cache_dtype)
        reader = reader and calibrate_adapters(reader, source)
        setup = AdapterSetup.decide(reader, options, adapters, dtype)
        decided = (source, place, dtype, cache_dtype, attention, quantize, setup)
        made = cls(options, *decided, speculation, _first_guesses(learnt, speculation), learnt)
        check_addressable(spec, made.formats, device, mesh.size)
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

    def shares_prefixes(self, limits: Limits) -> bool:
        """Whether prompts may start from what others have computed: where layers keep states, there must be some."""
        return self.prefix_cache and (limits.snapshots > 0 or not self.spec.recurrent_layers)

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
        return chosen if self.embeds and chosen in POOLINGS else ""

    @property
    def embeds(self) -> bool:
        """Whether embeddings can be made of hidden states."""
        return self.spec.encoder is None and self.spec.embedding_width == self.spec.hidden_size

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
            logger.info(
                "no prefix cache: what this model keeps of a prompt depends on all of it, or is its state alone"
            )
        for name, reason in self._without_effect().items():
            if getattr(self.options, name) is not None:
                logger.warning("%s has no effect: %s", flag(name), reason)

    def _without_effect(self) -> dict[str, str]:
        """Options that mean nothing to this model, and why."""
        unused = {} if self.spec.vision else dict.fromkeys(OF_PICTURES, "this model sees no pictures")
        if not self.spec.keeps_states:
            unused["state_snapshots"] = "no layer of this model keeps states"
        elif not self.prefix_cache:
            unused["state_snapshots"] = "prompts share nothing, as there is no prefix cache"
        return unused | ({} if self.embeds else {"pooling": "no embeddings are made of this model's hidden states"})

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


def _learnt(model: OpenModel, options: EngineOptions) -> DrafterSource | None:
    """What was learnt to draft: beside the model, or among its own tensors, where that is asked for."""
    if options.speculation is None or options.speculation.method != MTP:
        return model.drafter
    if model.module is None:
        raise ValueError(f"speculative_config: method {MTP!r}, but the model's files hold no module that drafts")
    return model.module(model.source.spec)


def _drafts(learnt: DrafterSource, speculation: Speculation | None) -> bool:
    """Whether that is what drafts."""
    return speculation is not None and speculation.method == learnt.spec.method


def _first_guesses(learnt: DrafterSource | None, speculation: Speculation | None) -> DrafterSpec | None:
    """As much of the drafter as `speculation` uses."""
    if learnt is None or speculation is None:
        return None
    assert speculation.num_speculative_tokens is not None  # `resolve_speculation` has decided
    return learnt.spec.first(speculation.num_speculative_tokens)

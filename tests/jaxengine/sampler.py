"""Random logits through the sampler as a step would send them: parameters packed by `upload`, memory in slots."""

from collections.abc import Sequence as Items
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.request.plan import Row
from jaxengine.request.sampling_params import SamplingParams
from jaxengine.request.sequence import Request, Sequence
from jaxengine.step import sampling
from jaxengine.step.buffer import StepShape, unpack_samples
from jaxengine.step.sampler_slot import SamplerSlot, fill_slot, needs_sampler_state
from jaxengine.step.sampler_state import SamplerState
from jaxengine.step.samples import Samples
from jaxengine.step.sampling import Sampled
from jaxengine.step.upload import SlotFields, Upload

LONGEST = 64  # tokens a sequence may have here


def history(params: SamplingParams, prompt: Items[int] = (1,), generated: Items[int] = ()) -> Sequence:
    """A sequence that is about to sample the token after `prompt` and `generated`."""
    sequence = Sequence(Request(0, prompt, params), 0)
    sequence.tokens += generated
    sequence.length = len(sequence.tokens)
    return sequence


def sample(
    logits: np.ndarray, sequences: Items[Sequence], eos: Items[int] = (), masks: np.ndarray | None = None
) -> Sampled:
    """Row r of `logits` [R, V] decides the next token of sequence r; alternatives are the whole vocabulary.

    `masks`, i32 [R, ⌈V/32⌉], count where a sequence has a matcher.
    """
    state = sampler_state_of(sequences, logits.shape[1], eos)
    if masks is not None:
        state = state._replace(mask=state.mask.at[: len(sequences)].set(masks))
    return sample_with(logits, sequences, state)[0]


def sample_with(logits: np.ndarray, sequences: Items[Sequence], state: SamplerState) -> tuple[Sampled, SamplerState]:
    """A step of sequences that are in slots 0 … already, and the sampler's memory behind it."""
    sampled, state = _sample(logits, pack(sequences), state)
    return Sampled(*map(np.asarray, sampled)), state


def pack(sequences: Items[Sequence], drafts: Items[list[int]] = (), padding: int = 0) -> np.ndarray:
    """The packed samples of a decode step, i32 [fields, N], of which the last `padding` are just that."""
    rows = [Row(s, s.length - 1, 1, 1) for s in sequences]
    for row, draft in zip(rows, drafts, strict=False):
        row.add_draft(draft)
    samples, size = Samples.last_of(rows), len(sequences)
    count = len(samples) + padding
    fields = SlotFields(size)
    upload = Upload(StepShape(count, size, count, size, ragged=bool(drafts)), sink_slot=size, table_width=8)
    for slot, sequence in enumerate(sequences):
        sequence.slot = slot
        fields.fill(sequence)
    upload.add_samples(samples, fields)
    return upload.packed_samples


def verify(
    logits: np.ndarray, sequences: Items[Sequence], drafts: Items[list[int]], state: SamplerState, padding: int = 0
) -> tuple[np.ndarray, SamplerState]:
    """A step in which sequence r has draft r: the ids sampled, i32 [N], and the sampler's memory behind them.

    `logits` [N, V] decide sample by sample; those of one sequence stand next to each other.
    """
    packed, most = pack(sequences, drafts, padding), max(map(len, drafts), default=0)
    sampled, state = _sample(logits, packed, state, guesses=most + 1)
    return np.asarray(sampled.id), state


def sampler_state_of(sequences: Items[Sequence], vocab: int, eos: Items[int] = ()) -> SamplerState:
    """The sampler's memory with `sequences` in slots 0 …"""
    state = SamplerState.empty(len(sequences), vocab, LONGEST)
    for slot, sequence in enumerate(sequences):
        sequence.slot = slot
    new = [SamplerSlot.of(each, eos, LONGEST, vocab) for each in sequences if needs_sampler_state(each)]
    if not new:
        return state
    new += new[-1:] * (len(sequences) - len(new))  # so that one function is compiled for any number of them
    return _fill_slots(state, jax.tree.map(lambda *values: np.stack(values), *new))


@partial(jax.jit, donate_argnums=0)
def _fill_slots(state: SamplerState, new: SamplerSlot) -> SamplerState:
    """`new` has a leading axis: one after the other."""
    return jax.lax.scan(lambda state, slot: (fill_slot(state, slot), None), state, new)[0]


def processed(logits: np.ndarray, sequences: Items[Sequence], eos: Items[int] = ()) -> np.ndarray:
    """Log-probabilities after all processors, f32 [R, V], -inf where filtered out."""
    return in_order_of_ids(sample(logits, sequences, eos))


def in_order_of_ids(sampled: Sampled) -> np.ndarray:
    rows = np.full(sampled.top_logprob.shape, np.nan, np.float32)
    np.put_along_axis(rows, sampled.top_id, sampled.top_logprob, axis=1)
    return rows


@partial(jax.jit, static_argnames="guesses")
def _sample(
    logits: jax.Array, packed: jax.Array, state: SamplerState, guesses: int = 0
) -> tuple[Sampled, SamplerState]:
    return sampling.sample(jnp.asarray(logits), unpack_samples(packed), state, logits.shape[1], guesses)


def state_after_sampling(logits: np.ndarray, sequences: Items[Sequence]) -> SamplerState:
    """The sampler's memory when `sample` is done."""
    return sample_with(logits, sequences, sampler_state_of(sequences, logits.shape[1]))[1]

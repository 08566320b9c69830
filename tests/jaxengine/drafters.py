"""Learnt drafters of random numbers, what PyTorch computes with them, and a speculator that always asks them."""

import random
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from jaxengine.architecture.drafter import DRAFTER, DrafterSpec, Medusa, MLPSpeculator
from jaxengine.engine.engine import Engine
from jaxengine.request.plan import Plan
from jaxengine.request.sequence import Sequence
from jaxengine.speculation.drafter import Proposal
from jaxengine.speculation.speculator import Room, Speculator
from tests.jaxengine.engines import Answers
from tests.tiny import VOCAB

GUESSES = 3


@dataclass(frozen=True)
class RandomDrafter:
    """A `DrafterSource`. Its numbers are large enough that each of them moves a guess."""

    spec: DrafterSpec

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(0)
        return {
            name: draw.standard_normal(each.shape, np.float32) * (each.shape[-1] ** -0.5 if each.inputs else 1)
            for name, each in self.spec.parameters().items()
        }

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        return self.arrays[name][index]

    def guesses(self, hidden: torch.Tensor, token: int, head: torch.Tensor) -> Proposal:
        """Behind `token`, which the model made of `hidden` [hidden] with `head` [vocab, hidden]."""
        arrays = {name.removeprefix(DRAFTER): torch.from_numpy(each) for name, each in self.arrays.items()}
        all_logits = _medusa(self.spec, arrays, hidden, head) if isinstance(self.spec, Medusa) else None
        ids: list[int] = []
        chances: list[float] = []
        state, last = hidden, token
        for i in range(self.spec.guesses):
            if isinstance(self.spec, MLPSpeculator):
                state, logits = _mlp(self.spec, arrays, i, state, last)
            else:
                assert all_logits is not None
                logits = all_logits[i]
            chance = logits.softmax(-1)
            last = int(logits.argmax())
            ids.append(last)
            chances.append(float(chance[last]))
        return Proposal(ids, chances)


def _medusa(
    spec: Medusa, arrays: dict[str, torch.Tensor], hidden: torch.Tensor, head: torch.Tensor
) -> list[torch.Tensor]:
    """The logits [vocab] of each head."""
    made = []
    for i in range(spec.guesses):
        x = hidden
        for layer in range(spec.layers):
            block = arrays[f"{i}.blocks.{layer}"] if layer else arrays["blocks"][i]
            bias = None
            if spec.bias:
                bias = arrays[f"{i}.blocks.{layer}_bias"] if layer else arrays["blocks_bias"][i]
            x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, block, bias))
        made.append((arrays[f"{i}.head"] if spec.own_heads else head) @ x)
    return made


def _mlp(
    spec: MLPSpeculator, arrays: dict[str, torch.Tensor], i: int, state: torch.Tensor, last: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The state behind guess i, and its logits [vocab]."""

    def normalised(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean() + 1e-6)

    if spec.scale_input and i == 0:
        state = normalised(state) / 2**0.5
    n = spec.trained or spec.guesses
    weight = 0.5 ** (0.5 / n)
    own, project = (0, min(i, 1)) if spec.tied else (i, i)
    state = arrays[f"{project}.project"] @ state * weight
    state = state + arrays[f"{own}.embedding"][last] * (1 - weight**2) ** 0.5 * (spec.inner_size / 2) ** 0.5
    state = torch.nn.functional.gelu(normalised(state) * arrays[f"{own}.norm"] + arrays[f"{own}.norm_bias"])
    return state, arrays[f"{own}.head"] @ state


@dataclass
class Asked:
    """Behind which tokens of a request something was proposed."""

    request: int
    tokens: list[int]
    proposal: Proposal


@dataclass
class Watched:
    """A `Proposer` that notes what another proposes, or forges it."""

    proposer: Any
    asked: list[Asked] = field(default_factory=list)

    def can_propose(self, rows: int) -> bool:
        return bool(self.proposer.can_propose(rows))

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        ready: list[Sequence] = self.proposer.catch_up(sequences)
        return ready

    def propose(self, sequences: Items[Sequence]) -> list[Proposal]:
        proposals: list[Proposal] = self.proposer.propose(sequences)
        for sequence, proposal in zip(sequences, proposals, strict=True):
            self.asked.append(Asked(sequence.request.id, [*sequence.tokens], proposal))
        return proposals


@dataclass
class Forged(Watched):
    """Proposes what follows in the `answers` to come, with the first wrong guess at a place that is drawn."""

    answers: Answers = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def propose(self, sequences: Items[Sequence]) -> list[Proposal]:
        return [self._forged(*each) for each in zip(sequences, super().propose(sequences), strict=True)]

    def _forged(self, sequence: Sequence, proposal: Proposal) -> Proposal:
        begun, count = len(sequence.tokens) - sequence.prompt_length, len(proposal.ids)
        ids = [*self.answers[sequence.request.id].ids[begun:], *[0] * count][:count]
        for place in range(self.chance.randint(0, count), count):
            ids[place] = (ids[place] + 1) % VOCAB
        return Proposal(ids, [0.5] * count)


class EagerSpeculator(Speculator):
    """Verifies all that is proposed and has room, whatever it costs."""

    def note(self, plan: Plan, size: int, seconds: float, answered: int) -> None:
        """It has no use for a clock."""

    def _affords(self, rows: int) -> bool:
        return rows < self.sizes[-1]

    def _counts(self, rooms: Items[Room], tokens: int, first: int = 0) -> list[int]:
        left, counts = self.sizes[-1] - tokens, []
        for room in rooms:
            drafted = self._drafter(room.sequence).draft(self.most)
            counts.append(min(room.most, len(drafted), left))
            left -= counts[-1]
        return counts


def eager(engine: Engine, proposer: object) -> EagerSpeculator:
    """One for `engine`, in place of its own."""
    own = engine.speculator
    assert own is not None
    return EagerSpeculator(own.options, own.sizes, own.ready, own.plain_size, proposer)  # type: ignore[arg-type]

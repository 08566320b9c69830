"""What drafts, lowered for imaginary H200s."""

import dataclasses

from jaxengine.architecture.drafter import DrafterSpec, DraftModel, Eagle, Medusa
from tests.gpu_compile.h200 import Facts, facts
from tests.gpu_compile.steps import FOUR_LAYERS, GUESSES, OPTIONS, ROWS, TWO_LAYERS, compiler, cut
from tests.shapes import LLAMA_8B

HEADS = Medusa(5, 1, LLAMA_8B.hidden_size, LLAMA_8B.vocab_size)
EAGLE3 = Eagle(  # as published for Llama-3.1-8B, but for the model's number of layers
    dataclasses.replace(cut(LLAMA_8B, 1), vocab_size=32000),
    LLAMA_8B.hidden_size,
    LLAMA_8B.vocab_size,
    guesses=4,
    taps=(1, 2, 4),
    own_embedding=False,
    own_ids=True,
)


def propose(drafter: DrafterSpec, rows: int = ROWS, devices: int = 1) -> Facts:
    made = compiler(FOUR_LAYERS, devices, speculate=drafter.guesses, drafter=drafter)
    return facts(made.lower_propose(rows), (), OPTIONS)


def draft(rows: int, devices: int = 1, guesses: int = 4) -> Facts:
    """What a draft model of two layers guesses."""
    made = compiler(FOUR_LAYERS, devices, speculate=guesses, drafter=DraftModel(TWO_LAYERS, guesses))
    return facts(made.lower_propose(rows), made.draft_caches(), OPTIONS)


def draft_reading(tokens: int) -> Facts:
    made = compiler(FOUR_LAYERS, 1, speculate=GUESSES, drafter=DraftModel(TWO_LAYERS, GUESSES))
    return facts(made.lower_read(tokens), made.draft_caches(), OPTIONS)


def eagle(rows: int, devices: int = 1) -> Facts:
    """What EAGLE-3's layer guesses."""
    made = compiler(FOUR_LAYERS, devices, speculate=EAGLE3.guesses, drafter=EAGLE3)
    return facts(made.lower_propose(rows), made.draft_caches(), OPTIONS)


def eagle_reading(tokens: int) -> Facts:
    made = compiler(FOUR_LAYERS, 1, speculate=EAGLE3.guesses, drafter=EAGLE3)
    return facts(made.lower_read(tokens), made.draft_caches(), OPTIONS)


def sample_for_drafter() -> Facts:
    made = compiler(FOUR_LAYERS, 1, speculate=HEADS.guesses, drafter=HEADS)
    return facts(made.lower_sample(ROWS, True), made.slot_state().latest, OPTIONS)

"""An answer behind an encoder repeats what the encoder read, as other answers repeat their prompt."""

from jaxengine.options.speculation import Speculation
from jaxengine.speculation.acceptance import LENGTH, Rates
from jaxengine.speculation.prompt_lookup import PART
from jaxengine.speculation.text_drafter import TextDrafter

SOURCE = [21, 22, 23, 24, 25, 26, 27, 28]
OPTIONS = Speculation(4, prompt_lookup_min=2, prompt_lookup_max=3)


def test_what_an_encoder_read_is_drafted_from() -> None:
    tokens = [0]
    drafter = TextDrafter(tokens, OPTIONS, Rates(LENGTH), SOURCE)
    assert drafter.draft(4) == []
    tokens += [22, 23]
    drafter.read()
    assert drafter.draft(4) == [24, 25, 26, 27]
    tokens += [24, 25]
    drafter.read()
    assert drafter.draft(2) == [26, 27] and tokens == [0, 22, 23, 24, 25]


def test_nothing_is_learnt_from_a_long_prompt_that_is_read_in_parts() -> None:
    tokens = [number % 7 for number in range(2 * PART + 9)]
    drafter = TextDrafter(tokens, OPTIONS, Rates(LENGTH))
    for number in range(3):
        assert (drafter.draft(1) == []) == (number < 2)
        tokens.append(tokens[-7])
        drafter.read()
    assert drafter.draft(2) == [tokens[-7], tokens[-6]]
    assert sum(drafter.rates.trials) == 1


def test_without_an_encoder_the_text_is_not_copied() -> None:
    tokens = [1, 2, 3, 1]
    drafter = TextDrafter(tokens, OPTIONS, Rates(LENGTH), [])
    tokens.append(2)
    drafter.read()
    assert drafter.lookup.tokens is tokens and drafter.draft(1) == [3]

"""Tokenizer and detokenizer, against the `tokenizers` library's own one-shot answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models

from gateway.text.detokenizer import MAX_PENDING, Detokenizer
from gateway.text.tokenizer import Tokenizer
from tests.gateway.toys import BOS, byte_level, sentencepiece

BYTES = Tokenizer(byte_level())
PIECES = Tokenizer(sentencepiece())
BOTH = pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
TEXTS = st.text(alphabet="helo wing.é日本🙂‍\n\t", max_size=40)


def pieces_of(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=True)
    return [*(detokenizer.push(id) for id in ids), detokenizer.flush()]


@BOTH
@given(text=TEXTS)
def test_streamed_text_is_the_decoded_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces_of(tokenizer, [], ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@BOTH
@given(prompt=TEXTS, text=TEXTS)
def test_streamed_text_continues_the_prompt(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    before = tokenizer.encode(prompt, add_special_tokens=False)
    after = tokenizer.encode(prompt + text, add_special_tokens=False)
    if after[: len(before)] != before or prompt.endswith("\ufffd"):
        return  # the text merged into the prompt's last token
    streamed = "".join(pieces_of(tokenizer, before, after[len(before) :]))
    decoded = tokenizer.decode(after, skip_special_tokens=True)
    assert decoded.endswith(streamed)
    assert len(decoded) == len(tokenizer.decode(before, skip_special_tokens=True)) + len(streamed)


@given(ids=st.lists(st.integers(0, 319), max_size=MAX_PENDING))
@settings(max_examples=300)
def test_any_bytes_stream_to_what_they_decode_to(ids: list[int]) -> None:
    assert "".join(pieces_of(BYTES, [], ids)) == BYTES.decode(ids, skip_special_tokens=True)


@BOTH
@given(text=TEXTS)
def test_an_incomplete_character_shows_nothing(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert not any("\ufffd" in piece for piece in pieces_of(tokenizer, [], ids))


def test_text_cut_inside_a_character_keeps_what_came_before() -> None:
    ids = BYTES.encode("hello 日", add_special_tokens=False)[:-1]
    assert "".join(pieces_of(BYTES, [], ids)) == "hello \ufffd"


def test_endless_invalid_bytes_are_not_held_back_for_ever() -> None:
    continuation_byte = BYTES.encode("é", add_special_tokens=False)[1]
    detokenizer = Detokenizer(BYTES, [], skip_special_tokens=True)
    pieces = [detokenizer.push(continuation_byte) for _ in range(MAX_PENDING)]
    assert pieces[-1] == "\ufffd" * MAX_PENDING


@BOTH
@given(prompt=TEXTS, text=TEXTS, pushed=st.integers(0, 8))
def test_the_last_ids_at_once_are_the_text_of_each(tokenizer: Tokenizer, prompt: str, text: str, pushed: int) -> None:
    before, ids = (tokenizer.encode(each, add_special_tokens=False) for each in (prompt, text))
    detokenizer = Detokenizer(tokenizer, before, skip_special_tokens=True)
    at_once = [*(detokenizer.push(id) for id in ids[:pushed]), detokenizer.flush(ids[pushed:])]
    assert "".join(at_once) == "".join(pieces_of(tokenizer, before, ids))


def test_ids_outside_the_vocabulary_show_nothing() -> None:
    [first, *rest] = BYTES.encode("hello world", add_special_tokens=False)
    assert "".join(pieces_of(BYTES, [], [first, 5000, *rest])) == "hello world"


def test_special_tokens_show_only_when_asked_for() -> None:
    ids = [*BYTES.encode("lo", add_special_tokens=False), BOS]
    shown = Detokenizer(BYTES, [], skip_special_tokens=False)
    assert "".join(pieces_of(BYTES, [], ids)) == "lo"
    assert "".join(shown.push(id) for id in ids) == "lo<s>"


def test_a_visible_special_token_stays_where_others_are_skipped() -> None:
    ids = [*BYTES.encode("lo", add_special_tokens=False), BOS]
    chosen = Detokenizer(BYTES, [], skip_special_tokens=True, visible=frozenset({BOS}))
    other = Detokenizer(BYTES, [], skip_special_tokens=True, visible=frozenset({BOS + 1}))
    assert "".join(chosen.push(id) for id in ids) == "lo<s>"
    assert "".join(other.push(id) for id in ids) == "lo"


def test_a_special_token_is_found_by_its_whole_text() -> None:
    assert BYTES.special_id("<s>") == BOS
    assert BYTES.special_id("lo") is None and BYTES.special_id("<s") is None


@BOTH
@given(text=TEXTS)
def test_token_bytes_add_up_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    joined = b"".join(tokenizer.token_bytes(id) for id in tokenizer.encode(text, add_special_tokens=False))
    leading = " " if tokenizer is PIECES and text else ""
    assert joined.decode() == leading + text


def test_spans_are_byte_ranges_of_the_text() -> None:
    text = "hé 日 world"
    raw = text.encode()
    spans = BYTES.spans(text)
    assert (spans[0].id, spans[0].text, spans[0].start, spans[0].stop) == (BOS, "", 0, 0)
    assert all(raw[span.start : span.stop].decode() == span.text for span in spans)
    assert spans[-1].stop == len(raw)


def test_a_tokenizer_file_that_truncates_or_pads_does_not(tmp_path: object) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    ids = Tokenizer(Backend.from_str(backend.to_str())).encode("hello world", add_special_tokens=False)
    assert len(ids) == 5


def test_the_longest_token_is_found_in_a_vocabulary_of_either_kind() -> None:
    unigram = Tokenizer(Backend(models.Unigram([("<unk>", 0.0), ("▁hello", -1.0)], unk_id=0, byte_fallback=False)))
    assert (BYTES.longest, unigram.longest) == (len("<|im_start|>"), len("▁hello"))

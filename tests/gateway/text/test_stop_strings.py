"""Stop strings, against a direct search of the whole text."""

import time

from hypothesis import given
from hypothesis import strategies as st

from gateway.text.stop_strings import MAX_STOP_CHARACTERS, StopMatcher

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)
CHUNKS = st.lists(st.text("abc", max_size=4), max_size=12)


def expected(text: str, stops: list[str], keep: bool, passed: int = 0) -> tuple[str, str | None]:
    """The shortest beginning of `text` that ends in a stop string, by looking at every one of more than `passed`."""
    for end in range(passed + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end if keep else end - len(longest)], longest
    return text, None


def streamed(chunks: list[str], stops: list[str], keep: bool, passed: int = 0) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, keep=keep)
    pieces = []
    for number, chunk in enumerate(chunks):
        release = matcher.push(chunk, may_end=number >= passed)
        pieces.append(release.text)
        if release.stop is not None:
            return pieces, release.stop
    return [*pieces, matcher.flush()], None


@given(chunks=CHUNKS, stops=STOPS, keep=st.booleans())
def test_every_split_of_a_text_ends_at_the_same_place(chunks: list[str], stops: list[str], keep: bool) -> None:
    pieces, stop = streamed(chunks, stops, keep)
    assert ("".join(pieces), stop) == expected("".join(chunks), stops, keep)


@given(chunks=CHUNKS, stops=STOPS, keep=st.booleans(), passed=st.integers(0, 12))
def test_what_ends_in_the_first_chunks_is_let_pass(
    chunks: list[str], stops: list[str], keep: bool, passed: int
) -> None:
    pieces, stop = streamed(chunks, stops, keep, passed)
    assert ("".join(pieces), stop) == expected("".join(chunks), stops, keep, len("".join(chunks[:passed])))


@given(chunks=CHUNKS, stops=STOPS)
def test_no_part_of_a_stop_string_is_ever_released(chunks: list[str], stops: list[str]) -> None:
    final, _ = expected("".join(chunks), stops, keep=False)
    shown = ""
    for piece in streamed(chunks, stops, keep=False)[0]:
        shown += piece
        assert final.startswith(shown)


@given(chunks=CHUNKS, stops=STOPS)
def test_kept_stop_strings_hold_nothing_back(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops, keep=True)
    for chunk in chunks:
        release = matcher.push(chunk)
        if release.stop is not None:
            return
        assert release.text == chunk


def test_many_long_stop_strings_that_may_all_have_begun_take_little_time() -> None:
    begun, length = "a" * (MAX_STOP_CHARACTERS - 1), MAX_STOP_CHARACTERS
    stops = [f"{begun}b", *("a" * equal + "c" * (length - equal) for equal in range(1, length))]
    matcher = StopMatcher(stops, keep=False)
    assert matcher.push(begun).text == ""
    began = time.thread_time()
    assert all(matcher.push("a").text == "a" for _ in range(200))
    assert time.thread_time() - began < 1  # 2.3 s where each stop string is compared with each end of the text


def test_without_stop_strings_text_passes_through() -> None:
    matcher = StopMatcher([], keep=False)
    assert matcher.push("anything").text == "anything"
    assert matcher.flush() == ""

"""How many pages a sequence takes: numbers only, nothing here allocates."""

from typing import NamedTuple


class PageNeed(NamedTuple):
    """Free pages that a running sequence takes beyond those it holds, summed over its page tables.

    Always `0 <= next_step <= known_tokens <= reserve`.

    next_step: at once, so that every position its next step writes has a page; without windows, every known token.
    known_tokens: at most at a time, until all of its known tokens are computed.
    reserve: what admission keeps free for it, so that nothing is preempted at once: `known_tokens`, and at least
        one page for each table if it may grow beyond the pages it holds.
    """

    next_step: int
    known_tokens: int
    reserve: int


def peak_pages(tokens: int, page_size: int, window: int, budget: int) -> int:
    """The most pages that a page table of `tokens` ever holds at a time.

    With a `window` (0 = none): the pages that the window reaches back over, those that a step of `budget` tokens in
    flight writes and those of the next planned step, and one page more, since neither end is a page's edge.
    """
    whole = -(-tokens // page_size)
    return min(whole, -(-(window + 2 * budget) // page_size) + 1) if window else whole

"""Prefill in chunks: how many of the tokens that a sequence has left to compute a step takes.

A chunk gets half of what is left of the step's token budget, so that a long prompt does not stop short ones. What
nobody wants is then added to the chunks, first come first served.
"""

from jaxengine.request.plan import Plan, Row
from jaxengine.request.sequence import Sequence
from jaxengine.scheduler.image_planner import ImagePlanner


class Prefill:
    """
    Args:
        token_budget: tokens that a step may compute.
        images: of prompts; they bound chunks.
    """

    def __init__(self, token_budget: int, images: ImagePlanner) -> None:
        self.token_budget = token_budget
        self.images = images

    def add_chunk(self, sequence: Sequence, plan: Plan) -> None:
        """Add a row with as much of the remaining prefill as half of the free budget holds, if it holds any."""
        start, free = sequence.computed, self.token_budget - plan.tokens
        count = self.images.take(sequence, start, self._share(sequence, start, free), free, plan)
        if count > 0:
            samples = start + count == sequence.length
            plan.add(Row(sequence, start, count, int(samples)))

    def has_chunk(self, sequence: Sequence, start: int, plan: Plan) -> bool:
        """Whether `add_chunk` would find room for the images of a chunk from `start` on."""
        if not self.images.bounds(sequence):
            return True
        free = self.token_budget - plan.tokens
        return self.images.reach(sequence, start, self._share(sequence, start, free), free, plan) > 0

    def lengthen_chunks(self, plan: Plan) -> None:
        """Lengthen the step's prefill chunks by the budget that is left, first come first served."""
        for row in plan.rows:
            if not row.samples and self.images.may_lengthen(row):
                start = row.start + row.count
                allowed = max(0, row.sequence.until_save(row.start) - row.count)  # an image that is not cut passes it
                more = min(self.token_budget - plan.tokens, allowed)
                more = self.images.take(row.sequence, start, more, more, plan)
                row.count += more
                row.samples = int(start + more == row.sequence.length)
                plan.tokens += more

    def _share(self, sequence: Sequence, start: int, free: int) -> int:
        return min(sequence.until_save(start), (free + 1) // 2)

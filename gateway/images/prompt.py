"""Prompts with pictures: a text with a placeholder for each picture → token ids, and where the pictures lie in them.

Ids are those of transformers' `AutoProcessor` for the same text and pictures. A processor writes thousands of equal
placeholders into the text and tokenises them all. Here each run of them is written as one, and repeated among the ids:
special tokens cut a text, so what is tokenised around a run is the same.

A text part of a request that spells a placeholder is refused (`refused`) before a template is rendered; then those in
the rendered text are the template's, one a picture, which `write` checks by their number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.images.plan import PicturePlan
from gateway.images.processor import ImageProcessor
from gateway.images.settings import UnusableProcessor
from gateway.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Span:
    """Where a picture lies in a prompt: from its first row to its last, separators between them included."""

    offset: int
    length: int


@dataclass(frozen=True)
class Prompt:
    """Token ids, and the span of each picture, in order. Those of the rows within it have the id of the processor's
    `token`; others belong to the wording.
    """

    ids: list[int]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class WrittenPrompt:
    """A prompt about to be tokenised: `text`, in which each run of rows is written as one token."""

    text: str
    add_special_tokens: bool  # how to tokenise it
    token: int
    runs: tuple[tuple[int, ...], ...]  # of each picture

    def prompt(self, short: Sequence[int]) -> Prompt:
        """The prompt of which `short` are the ids of `text`.

        Raises:
            ValueError: they have more placeholders than the wording: the request's text spells some.
        """
        at = [index for index, id in enumerate(short) if id == self.token]
        if len(at) != sum(map(len, self.runs)):
            raise ValueError("the text must not spell the placeholder of an image")
        ids: list[int] = []
        spans, copied, places = [], 0, iter(at)
        for runs in self.runs:
            begin = -1
            for run in runs:
                place = next(places)
                ids += short[copied:place]
                begin = len(ids) if begin < 0 else begin
                ids += [self.token] * run
                copied = place + 1
            spans.append(Span(begin, len(ids) - begin))
        return Prompt(ids + list(short[copied:]), tuple(spans))


class PromptWriter:
    """Words the prompts of one checkpoint.

    Fields:
        placeholder: what the chat template writes for a picture.
        inline: what to put for a picture into a text that no template writes (TGI's `![](…)`).

    Raises:
        UnusableProcessor: the tokenizer lacks the token of pictures.
    """

    def __init__(self, processor: ImageProcessor, tokenizer: Tokenizer) -> None:
        self._kind, self._tokenizer, self._token = processor.kind, tokenizer, processor.token
        spellings = {id: text for text, id in tokenizer.marks.items()}
        self._row = spellings.get(processor.token, "")
        if not self._row:
            raise UnusableProcessor(
                f"tokenizer.json: id {processor.token}, of images in config.json, must be a special token"
            )
        self.placeholder = self._kind.placeholder(self._row)
        self.inline = self._kind.inline(self._row)
        spelled = {self._row, self.placeholder, *self._kind.refused}
        self._refused = tuple(sorted(spelled & tokenizer.marks.keys()))

    def refused(self, text: str) -> str | None:
        """The placeholder that a request's `text` spells, which is to be refused; None if it spells none."""
        return next((each for each in self._refused if each in text), None)

    def adds_special_tokens(self, rendered: str, bos: str | None) -> bool:
        """Whether a chat that a template has rendered is tokenised with the tokens that begin a text.

        transformers' processors, unlike its tokenizers, add them unless the template has written `bos`.
        """
        return not (bos and rendered.startswith(bos))

    def write(self, text: str, plans: Sequence[PicturePlan], *, add_special_tokens: bool) -> WrittenPrompt:
        """The prompt of `text`, whose placeholders are the pictures of `plans`, in order.

        Raises:
            ValueError: there are more or fewer placeholders than pictures.
        """
        parts = text.split(self.placeholder)
        if len(parts) != len(plans) + 1:
            raise ValueError(f"the prompt has {len(parts) - 1} places for images, and there are {len(plans)} images")
        runs = tuple(plan.runs for plan in plans)
        if not plans:
            return WrittenPrompt(text, add_special_tokens, self._token, runs)
        written = ["".join(self._worded(plan)) for plan in plans]
        begins_itself, whole = self._kind.join(parts, written)
        return WrittenPrompt(whole, add_special_tokens and not begins_itself, self._token, runs)

    def encode(self, text: str, plans: Sequence[PicturePlan], *, add_special_tokens: bool) -> Prompt:
        """`write`, and the ids of it. Raises as `write`, and as `WrittenPrompt.prompt`."""
        written = self.write(text, plans, add_special_tokens=add_special_tokens)
        return written.prompt(self._tokenizer.encode(written.text, add_special_tokens=written.add_special_tokens))

    def _worded(self, plan: PicturePlan) -> Iterator[str]:
        for piece in plan.pieces:
            yield piece if isinstance(piece, str) else self._row

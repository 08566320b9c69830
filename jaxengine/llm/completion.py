"""What `LLM` takes and gives besides token ids: parameters that need text, completions, and vLLM's view of them."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxengine.request.event import Token
from jaxengine.request.sampling_params import SamplingParams as EngineParams

MAX_ANSWERS = 1024  # to one prompt
AS_MANY = 2**31 - 1  # max_tokens: as many as the model has room for
LEFT_OUT: dict[str, object] = {  # what None stands for, which vLLM's callers write for an option that they leave out
    "max_tokens": AS_MANY,
    "logprobs": 0,
    "prompt_logprobs": False,
    "logit_bias": {},
    "stop_token_ids": (),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams(EngineParams):
    """How one request wants its tokens sampled; the engine's parameters, and those that need text.

    The defaults sample 16 tokens from the model's plain distribution. `temperature=0` takes the likeliest each time.
    `max_tokens=None` samples as many as the model has room for. As with vLLM, `top_k=-1` is none, and so is None of
    `logprobs`, `prompt_logprobs`, `logit_bias`, `stop_token_ids` and `stop`.

    n: answers to the prompt, each with a seed of its own.
    stop: one string or several; the text ends before the first that occurs, wherever tokens end. It ends before a token
        of `stop_token_ids` too, which `token_ids` have.
    include_stop_str_in_output: the text ends behind it instead.
    skip_special_tokens: False shows tokens such as `</s>` in the text.

    Raises:
        ValueError: a value is out of range or not finite; the message names field, value and limit.
    """

    n: int = 1
    stop: str | Sequence[str] | None = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for name, ours in LEFT_OUT.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, ours)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        super().__post_init__()
        if not all(isinstance(each, str) and each for each in self.stops):
            raise ValueError(f"stop must be a string or several, none of them empty, got {self.stop!r}")
        if not 1 <= operator.index(self.n) <= MAX_ANSWERS:
            raise ValueError(f"n must be between 1 and {MAX_ANSWERS}, got {self.n}")

    @property
    def stops(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or ()


@dataclass(frozen=True)
class Logprob:
    """A token that was drawn, or could have been. `rank` is its place among those listed, 1 for the likeliest; None
    where it is none of them.
    """

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True)
class Output:
    """An answer in vLLM's words.

    logprobs: of each token a dictionary by id, of the token drawn and of the likeliest; None unless asked for.
    finish_reason: "stop", whatever ended the text but its limit; "length"; or "error".
    stop_reason: the stop string or the id of the stop token; None at the model's own end.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str
    stop_reason: str | int | None


@dataclass
class Completion:
    """What one prompt became.

    `finish_reason` is "length", "eos", "stop_token", "stop" (`stop_reason` is the string) or "error": the request
    failed inside the engine, `error` says how, and what it had generated so far is here. vLLM's names are here too:
    `outputs[0].text`, `.token_ids`, `.logprobs`, `.finish_reason`; `prompt_token_ids`.
    """

    prompt_ids: list[int]
    params: SamplingParams
    tokens: list[Token] = field(default_factory=list)
    prompt_tokens: list[Token] = field(default_factory=list)  # with `prompt_logprobs`
    text: str = ""
    finish_reason: str = ""
    stop_reason: str | None = None
    error: str = ""
    cached_tokens: int = 0
    beams: "list[Completion]" = field(default_factory=list)  # of a beam search, the best first; this one is empty then
    score: float | None = None  # of a beam, see `BeamSearch`
    embedding: bytes = b""  # float32 [hidden], of `LLM.embed`
    prompt: str | None = None  # None where it was given as ids
    others: "list[Completion]" = field(default_factory=list)  # the further answers, where `n` asks for several
    decode: Callable[[int], str] = field(default=str, repr=False, compare=False)  # a token as text

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.prompt_ids

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    @property
    def outputs(self) -> list[Output]:
        """All answers to the prompt as vLLM has them: one, or `n`, or those of a beam search."""
        return [each._output(index) for index, each in enumerate(self.beams or [self, *self.others])]

    def _output(self, index: int) -> Output:
        stopped = self.finish_reason in ("eos", "stop_token", "stop")
        reason: str | int | None = self.stop_reason
        if self.finish_reason == "stop_token":
            reason = self.tokens[-1].id
        return Output(
            index,
            self.text,
            self.token_ids,
            sum(token.logprob for token in self.tokens),
            [self._alternatives(token) for token in self.tokens] if self.params.logprobs else None,
            "stop" if stopped else self.finish_reason,
            reason,
        )

    def _alternatives(self, token: Token) -> dict[int, Logprob]:
        ranks = {id: rank for rank, (id, _) in enumerate(token.top, start=1)}
        listed = {token.id: token.logprob, **dict(token.top)}
        return {id: Logprob(logprob, ranks.get(id), self.decode(id)) for id, logprob in listed.items()}


class Stream(Iterator[str]):
    """Pieces of a text as they come. `completion` grows with them, and is whole behind the last one.

    Args:
        advance: gives the next piece, or None behind the last.
        end: ends the request if it still runs, as `close` and the end of a `with` block do.
    """

    def __init__(self, completion: Completion, advance: Callable[[], str | None], end: Callable[[], None]) -> None:
        self.completion = completion
        self._advance, self.close = advance, end

    def __next__(self) -> str:
        piece = self._advance()
        if piece is None:
            raise StopIteration
        return piece

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()  # who breaks out of a loop wants no more

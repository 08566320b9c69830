"""The sampling options in the words of each API, and of the engine."""

from dataclasses import dataclass
from typing import Any

from gateway.benchmark.options import BenchmarkOptions
from jaxengine.options.option import UsageError
from jaxengine.rpc import engine_pb2 as pb

GAMMA, DELTA = 0.5, 2.0  # of a watermark, as the launcher's defaults


@dataclass(frozen=True)
class Sampling:
    options: BenchmarkOptions

    def _given(self, *names: str) -> dict[str, Any]:
        found = {name: getattr(self.options, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def _temperature(self) -> float:
        return (self.options.temperature or 1.0) if self.options.samples else 0.0

    def _openai(self) -> dict[str, Any]:
        """Of OpenAI's fields and vLLM's those that are given. Raises UsageError for what they lack."""
        if self.options.watermark:
            raise UsageError("--watermark needs TGI's API: add --api tgi")
        filters = self._given("top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty")
        return {"temperature": self._temperature, **filters}

    def completions(self) -> dict[str, Any]:
        listed = self.options.top_n_tokens
        return {**self._openai(), **({"logprobs": listed} if listed else {})}

    def chat(self) -> dict[str, Any]:
        listed = self.options.top_n_tokens
        return {**self._openai(), **({"logprobs": True, "top_logprobs": listed} if listed else {})}

    def tgi(self) -> dict[str, Any]:
        given = self._given("top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty", "top_n_tokens")
        switches = {name: True for name in ("watermark", "do_sample") if getattr(self.options, name)}
        warmth = {"temperature": self._temperature} if self.options.samples else {}
        return {name: value for name, value in {**given, **switches, **warmth}.items() if not _refused(name, value)}

    def engine(self) -> pb.Sampling:
        options = self.options
        return pb.Sampling(
            temperature=self._temperature,
            top_k=options.top_k or 0,
            top_p=options.top_p or 1.0,
            typical_p=options.typical_p or 1.0,
            repetition_penalty=options.repetition_penalty or 1.0,
            frequency_penalty=options.frequency_penalty or 0.0,
            frequency_over_length=True,
            processed_logprobs=True,
            seed=options.seed or 0,
            top_logprobs=options.top_n_tokens or 0,
            watermark_gamma=GAMMA if options.watermark else 0.0,
            watermark_delta=DELTA if options.watermark else 0.0,
        )


def _refused(name: str, value: Any) -> bool:
    """Whether TGI refuses a neutral value that means nothing."""
    return name in ("top_p", "typical_p") and value == 1

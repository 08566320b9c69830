"""What the text model answers, as tensors: the texts of a request's sequences, and what else its switches ask for."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gateway.http.encoding import finite_or_none, json_bytes
from gateway.request.output import OutputDelta, OutputProcessor, TokenText
from gateway.routes.kserve.inference import TensorSpec
from gateway.routes.kserve.tensor import BYTES, Tensor
from gateway.routes.kserve.text_inputs import Given
from gateway.routes.openai.envelope import FINISH_REASONS

TEXT = "text_output"
# Each output by the switch that asks for it: vLLM's and TensorRT-LLM's names.
ASKED = {
    "finish_reason": (BYTES, "return_finish_reason"),
    "cumulative_logprob": ("FP32", "return_cumulative_logprob"),
    "cum_log_probs": ("FP32", "return_log_probs"),
    "output_log_probs": ("FP32", "return_log_probs"),
    "logprobs": (BYTES, "return_logprobs"),
    "num_input_tokens": ("INT32", "return_num_input_tokens"),
    "num_output_tokens": ("INT32", "return_num_output_tokens"),
}
OUTPUTS = (
    TensorSpec(TEXT, BYTES),
    *(
        TensorSpec(name, datatype, (-1, -1) if name == "output_log_probs" else (-1,))
        for name, (datatype, _) in ASKED.items()
    ),
)


class TextAnswer:
    """The answer of one request.

    Args:
        outputs: of its sequences, in the order of the answer.
        prompt: what stands before each text; "" where it is not repeated.
        top: alternatives that `logprobs` lists beside each token.
        wanted: whether an output that the switches ask for is to be in the answer.
    """

    def __init__(
        self, given: Given, outputs: Sequence[OutputProcessor], prompt: str, top: int, wanted: Callable[[str], bool]
    ) -> None:
        self._outputs, self._prompt, self._top = outputs, prompt, top
        self._names = [name for name, (_, switch) in ASKED.items() if given.switch(switch) and wanted(name)]
        self._shows_text = wanted(TEXT)
        self._sums = [0.0] * len(outputs)  # of logprobs so far

    def tensors(self, deltas: Sequence[Sequence[OutputDelta]]) -> list[Tensor]:
        """What `deltas`, of each sequence, add."""
        texts = [self._prompt + "".join([delta.text for delta in each]) for each in deltas]
        found = [Tensor.of(TEXT, BYTES, texts)] if self._shows_text else []
        if not self._names:
            return found
        tokens = [[token for delta in each for token in delta.tokens] for each in deltas]
        for number, each in enumerate(tokens):
            self._sums[number] += sum(token.logprob for token in each)
        return found + [self._tensor(name, tokens) for name in self._names]

    def _tensor(self, name: str, tokens: list[list[TokenText]]) -> Tensor:
        datatype = ASKED[name][0]
        if name == "output_log_probs":  # [n, longest], padded with zeros
            table = np.zeros((len(tokens), max(map(len, tokens), default=0)), np.float32)
            for row, each in zip(table, tokens, strict=True):
                row[: len(each)] = [token.logprob for token in each]
            return Tensor.of(name, datatype, table, table.shape)
        values: dict[str, Callable[[], list[Any]]] = {
            "finish_reason": lambda: [_reason(each) for each in self._outputs],
            "cumulative_logprob": lambda: self._sums,
            "cum_log_probs": lambda: self._sums,
            "logprobs": lambda: list(map(self._logprobs, self._outputs, tokens)),
            "num_input_tokens": lambda: [len(self._outputs[0].prompt_ids)],
            "num_output_tokens": lambda: [len(each) for each in tokens],
        }
        return Tensor.of(name, datatype, values[name]())

    def _logprobs(self, output: OutputProcessor, tokens: list[TokenText]) -> str:
        """vLLM's list, as JSON: for each token it and its alternatives by id, with logprob, rank and text."""
        name = output.model.tokenizer.token_text
        listed = []
        for token in tokens:
            top = enumerate(token.top[: self._top], 1)
            shown: dict[int, tuple[float, int | None]] = {each.id: (each.logprob, rank) for rank, each in top}
            shown.setdefault(token.id, (token.logprob, None))
            listed.append(
                {
                    str(id): {"logprob": finite_or_none(logprob), "rank": rank, "decoded_token": name(id)}
                    for id, (logprob, rank) in shown.items()
                }
            )
        return json_bytes(listed).decode()


def _reason(output: OutputProcessor) -> str:
    """As vLLM's back end says it, "None" while the text goes on."""
    return "None" if output.finish is None else FINISH_REASONS[output.finish]

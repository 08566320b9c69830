"""What the text model takes: its inputs, and what a request gives of them.

They are the tensors of TensorRT-LLM's back end (tensorrtllm_backend, all_models/inflight_batcher_llm) and of vLLM's
(vllm_backend, src/model.py). vLLM's sampling parameters come as JSON in the tensor `sampling_parameters`, or as
parameters of the request; numbers among them may be texts, which is how genai-perf writes them.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.errors import RequestError
from gateway.http.encoding import short_float
from gateway.http.strict_json import NotStrictJson, strict_json
from gateway.routes.kserve.inference import SEQUENCE, InferRequest, TensorSpec, one_value, shown, texts_of
from gateway.routes.kserve.tensor import BYTES, Tensor
from gateway.routes.openai.schemas import CompletionRequest
from gateway.routes.openai.unsupported import HINTS, UNSUPPORTED, refuse_unsupported

# Inputs by the field of a completion that each is.
FIELDS = {
    "text_input": ("prompt", BYTES),
    "max_tokens": ("max_tokens", "INT32"),
    "min_tokens": ("min_tokens", "INT32"),
    "min_length": ("min_tokens", "INT32"),
    "top_k": ("top_k", "INT32"),
    "top_p": ("top_p", "FP32"),
    "temperature": ("temperature", "FP32"),
    "repetition_penalty": ("repetition_penalty", "FP32"),
    "presence_penalty": ("presence_penalty", "FP32"),
    "frequency_penalty": ("frequency_penalty", "FP32"),
    "length_penalty": ("length_penalty", "FP32"),
    "seed": ("seed", "UINT64"),
    "random_seed": ("seed", "UINT64"),
    "num_return_sequences": ("n", "INT32"),
    "bad_words": ("bad_words", BYTES),
    "stop_words": ("stop", BYTES),
}
# Inputs with a meaning of their own.
OTHERS = {
    "beam_width": "INT32",
    "end_id": "INT32",
    "pad_id": "INT32",  # nothing here is padded
    "guided_decoding_guide_type": BYTES,
    "guided_decoding_guide": BYTES,
    "sampling_parameters": BYTES,
}
SWITCHES = (
    "stream",
    "exclude_input_in_output",
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_log_probs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
LISTS = ("bad_words", "stop_words")  # several texts, of which empty ones mean none
DATATYPES = {name: datatype for name, (_, datatype) in FIELDS.items()} | OTHERS | dict.fromkeys(SWITCHES, "BOOL")
INPUTS = tuple(  # perf_analyzer must be told every size that varies
    TensorSpec(name, datatype, (-1,) if name in LISTS else (1,), optional=name != "text_input")
    for name, datatype in DATATYPES.items()
)
IMAGE = "image"  # vLLM's: base64 of as many images as there are, in their order
SEEING_INPUTS = (*INPUTS, TensorSpec(IMAGE, BYTES, (-1,), optional=True))
# Inputs of the two back ends that ask for what is done another way here, or not at all.
_ADAPTER = "name the adapter as the request's model"
_PROMPT = "a prompt is a text"
_BIAS = "use logit_bias in sampling_parameters"
REFUSED = {
    IMAGE: "this model reads no images",
    **dict.fromkeys(("lora_task_id", "lora_weights", "lora_config"), _ADAPTER),
    **dict.fromkeys(("prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_id"), _PROMPT),
    **dict.fromkeys(("embedding_bias_words", "embedding_bias_weights"), _BIAS),
    "decoder_text_input": "the model writes the decoder's text",
    "return_context_logits": "the model whose name ends in _logits answers them",
    "return_generation_logits": "use return_logprobs",
}
RESERVED = ("timeout", "priority", "headers", "binary_data_output", *SEQUENCE)
GUIDED = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")
# Sampling parameters whose value is a text; another text is a number, a truth value or a list, as JSON.
TEXTS = ("stop", "bad_words", "lora_name", "cache_salt", *GUIDED)
# Fields of a completion that are not sampling parameters: the protocol has other words for them, or none.
NOT_SAMPLING = ("prompt", "stream", "stream_options", "echo", "model", "request_id", "prompt_logprobs", "suffix")
# vLLM's sampling parameters that a completion does not know, by the values that ask for nothing.
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {"detokenize": (True,), "flat_logprobs": (False,), "extra_args": ({},)}
KNOWN = frozenset(
    (*CompletionRequest.model_fields, *UNSUPPORTED, *HINTS, *DATATYPES, *NOT_SAMPLING, *WITHOUT_EFFECT, "lora_name")
)


@dataclass
class Given:
    """What a request gives.

    fields: of the completion. others: inputs with a meaning of their own, by name.
    names: by field, what the client calls it.
    images: as base64.
    vllm: whether there are vLLM's `sampling_parameters`.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)
    vllm: bool = False

    @classmethod
    def of(cls, request: InferRequest) -> "Given":
        """Inputs count before `sampling_parameters`, and those before the request's parameters. Raises RequestError."""
        given = cls({"priority": request.priority})
        for name, value in request.parameters.items():
            if name not in RESERVED and not name.startswith("triton_"):
                given._add(name, value)
        if (tensor := request.inputs.get("sampling_parameters")) is not None and (text := str(one_value(tensor))):
            given.vllm = True
            for name, value in _sampling_parameters(text).items():
                given._add(name, value)
        for name, tensor in request.inputs.items():
            if name == IMAGE and tensor.datatype == BYTES:
                given.images = [text for text in texts_of(tensor) if text]
            elif name not in REFUSED:
                given._add(name, _value_of(tensor))
        return given

    def _add(self, name: str, value: Any) -> None:
        """Take note of an input, or of a sampling parameter, `name`."""
        if name in OTHERS or name in SWITCHES:
            if not isinstance(value, bool | int | float | str):
                raise RequestError.invalid(f"{name} must be one value", name)
            self.others[name] = value
        elif name in FIELDS:
            known = FIELDS[name][0]
            self.names[known] = name
            self.fields[known] = value if name in ("text_input", *LISTS) else _number(value)
        elif name in NOT_SAMPLING:
            raise RequestError.invalid(f"{name} is not a sampling parameter", name)
        elif value is not None:
            self.fields["model" if name == "lora_name" else name] = value if name in TEXTS else _number(value)

    def switch(self, name: str) -> bool:
        """Whether a switch is on. Raises RequestError."""
        value = self.others.get(name, False)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if not isinstance(value, bool):
            raise RequestError.invalid(f"{name} must be true or false", name)
        return value

    @property
    def constrains(self) -> bool:
        """Whether the text must match something, which takes long to check."""
        fields = (*GUIDED, "response_format", "structured_outputs")
        return "guided_decoding_guide" in self.others or any(name in self.fields for name in fields)


def _value_of(tensor: Tensor) -> Any:
    if tensor.name in LISTS:
        return [text for text in texts_of(tensor) if text]
    value = one_value(tensor)
    return short_float(value) if isinstance(value, float) else value


def _sampling_parameters(text: str) -> dict[str, Any]:
    """vLLM's, by name. Another name is an error, as there: a client that spells one wrong is to know."""
    try:
        value = strict_json(text)
    except NotStrictJson as error:
        raise RequestError.invalid(f"sampling_parameters {error}", "sampling_parameters") from None
    if not isinstance(value, dict):
        raise RequestError.invalid("sampling_parameters must be a JSON object", "sampling_parameters")
    if unknown := [name for name in value if name not in KNOWN]:
        raise RequestError.invalid(f"sampling_parameters: there is no '{shown(unknown[0])}'", "sampling_parameters")
    refuse_unsupported(value, WITHOUT_EFFECT, {})
    return value


def _number(value: Any) -> Any:
    """`value`, or what it is as JSON if it is a text that is JSON."""
    if not isinstance(value, str):
        return value
    try:
        return strict_json(value.lower() if value in ("True", "False") else value)
    except NotStrictJson:
        return value

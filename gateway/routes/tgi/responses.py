"""The answers of TGI's routes, for the OpenAPI document."""

from gateway.http.openapi import OPTIONAL, OPTIONAL_LIST, AnswerModel

EVENTS = "JSON, an event per token: `index`, `token`, `top_tokens`, `generated_text`, `details`"


class Prefill(AnswerModel):
    id: int
    text: str
    logprob: float | None


class Token(Prefill):
    special: bool


class Sequence(AnswerModel):
    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[Prefill]
    tokens: list[Token]
    top_tokens: list[list[Token]] = OPTIONAL_LIST


class Other(Sequence):
    generated_text: str


class Details(Sequence):
    best_of_sequences: list[Other] = OPTIONAL_LIST


class Generation(AnswerModel):
    generated_text: str
    details: Details | None = None


class Span(AnswerModel):
    """A token and the bytes of the text it stands for."""

    id: int
    text: str
    start: int
    stop: int


class TemplatedChat(AnswerModel):
    tokenize_response: list[Span]
    templated_text: str


class Predictions(AnswerModel):
    predictions: list[str]


class Replica(AnswerModel):
    """One of several engines."""

    index: int
    state: str  # "starting", "ready", "draining" or "lost"
    devices: str
    waiting: int
    running: int
    kv: float  # share of its KV cache pages that requests hold, 0 to 1


class Info(AnswerModel):
    model_id: str
    model_sha: str | None
    model_pipeline_tag: str
    model_dtype: str
    quantize: str | None
    kv_cache_dtype: str | None
    speculate: int  # most draft tokens of a request in a step
    model_device_type: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    max_batch_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    tool_call_parser: str
    reasoning_parser: str
    router: str
    version: str
    sha: str | None
    docker_label: str | None
    max_images: int = OPTIONAL  # of a prompt; this and the next three only of a model that sees
    max_image_size: int = OPTIONAL  # bytes of a file
    max_image_pixels: int = OPTIONAL
    image_payload_limit: int = OPTIONAL  # bytes of a body
    replicas: list[Replica] = OPTIONAL_LIST  # unless there is but one

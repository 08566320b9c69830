"""The answers of these routes, for the OpenAPI document."""

from typing import Any

from pydantic import ConfigDict

from gateway.http.openapi import OPTIONAL, OPTIONAL_LIST, AnswerModel

EVENTS = "JSON, an event per response: `model_name`, `model_version`, `id`, and each output by its name"


class Live(AnswerModel):
    live: bool


class Ready(AnswerModel):
    ready: bool


class ModelReady(AnswerModel):
    name: str
    ready: bool


class ServerMetadata(AnswerModel):
    name: str
    version: str
    extensions: list[str]


class ModelList(AnswerModel):
    models: list[str]


class TensorMetadata(AnswerModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(AnswerModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InputConfig(AnswerModel):
    name: str
    data_type: str
    dims: list[int]
    optional: bool


class OutputConfig(AnswerModel):
    name: str
    data_type: str
    dims: list[int]
    label_filename: str


class TransactionPolicy(AnswerModel):
    decoupled: bool


class ModelConfig(AnswerModel):
    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[InputConfig]
    output: list[OutputConfig]
    model_transaction_policy: TransactionPolicy


class Duration(AnswerModel):
    count: int
    ns: int


class InferenceStats(AnswerModel):
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class ModelStatistics(AnswerModel):
    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStats
    batch_stats: list[Any]
    memory_usage: list[Any]
    response_stats: dict[str, Any]


class Statistics(AnswerModel):
    model_stats: list[ModelStatistics]


class IndexEntry(AnswerModel):
    name: str
    version: str
    state: str
    reason: str


class OutputTensor(AnswerModel):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] = OPTIONAL_LIST
    parameters: dict[str, int] = OPTIONAL


class Inference(AnswerModel):
    model_name: str
    model_version: str
    id: str = OPTIONAL
    outputs: list[OutputTensor]


class Generated(AnswerModel):
    """Beside these fields, each output by its name."""

    model_config = ConfigDict(extra="allow")

    model_name: str
    model_version: str
    id: str = OPTIONAL


class LogSettings(AnswerModel):
    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str


class TraceSettings(AnswerModel):
    trace_level: list[str]
    trace_rate: str
    trace_count: str
    log_frequency: str
    trace_file: str
    trace_mode: str


class Empty(AnswerModel):
    """Nothing."""

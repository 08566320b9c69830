from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STARTING: _ClassVar[State]
    WARMING: _ClassVar[State]
    READY: _ClassVar[State]
    DRAINING: _ClassVar[State]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOT_FINISHED: _ClassVar[FinishReason]
    LENGTH: _ClassVar[FinishReason]
    EOS: _ClassVar[FinishReason]
    STOP_TOKEN: _ClassVar[FinishReason]
    CANCELLED: _ClassVar[FinishReason]
    DEADLINE: _ClassVar[FinishReason]
    INVALID: _ClassVar[FinishReason]
    ERROR: _ClassVar[FinishReason]
    QUEUE_TIMEOUT: _ClassVar[FinishReason]
STARTING: State
WARMING: State
READY: State
DRAINING: State
NOT_FINISHED: FinishReason
LENGTH: FinishReason
EOS: FinishReason
STOP_TOKEN: FinishReason
CANCELLED: FinishReason
DEADLINE: FinishReason
INVALID: FinishReason
ERROR: FinishReason
QUEUE_TIMEOUT: FinishReason

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path", "in_place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    IN_PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    in_place: bool
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., in_place: bool = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "path", "rank", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    rank: int
    digest: bytes
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., rank: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class AdapterList(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("state", "progress", "model_id", "revision", "model_dir", "dtype", "device_kind", "device_count", "vocab_size", "eos_token_ids", "max_total_tokens", "max_batch_prefill_tokens", "max_batch_total_tokens", "max_batch_size", "page_size", "max_top_logprobs", "decoder_start_token_id", "pages_total", "prefix_cache", "cache_dtype", "max_adapters", "max_adapter_rank", "max_draft_tokens", "pooling", "hidden_size", "embeds_only", "logits", "image_token_id", "patch_values", "patch_dtype", "image_horizon", "max_images", "max_image_patches", "max_image_tokens")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DECODER_START_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTER_RANK_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    EMBEDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PATCH_VALUES_FIELD_NUMBER: _ClassVar[int]
    PATCH_DTYPE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_HORIZON_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PATCHES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    state: State
    progress: str
    model_id: str
    revision: str
    model_dir: str
    dtype: str
    device_kind: str
    device_count: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_total_tokens: int
    max_batch_prefill_tokens: int
    max_batch_total_tokens: int
    max_batch_size: int
    page_size: int
    max_top_logprobs: int
    decoder_start_token_id: int
    pages_total: int
    prefix_cache: bool
    cache_dtype: str
    max_adapters: int
    max_adapter_rank: int
    max_draft_tokens: int
    pooling: str
    hidden_size: int
    embeds_only: bool
    logits: bool
    image_token_id: int
    patch_values: int
    patch_dtype: str
    image_horizon: str
    max_images: int
    max_image_patches: int
    max_image_tokens: int
    def __init__(self, state: _Optional[_Union[State, str]] = ..., progress: _Optional[str] = ..., model_id: _Optional[str] = ..., revision: _Optional[str] = ..., model_dir: _Optional[str] = ..., dtype: _Optional[str] = ..., device_kind: _Optional[str] = ..., device_count: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_total_tokens: _Optional[int] = ..., max_batch_prefill_tokens: _Optional[int] = ..., max_batch_total_tokens: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., page_size: _Optional[int] = ..., max_top_logprobs: _Optional[int] = ..., decoder_start_token_id: _Optional[int] = ..., pages_total: _Optional[int] = ..., prefix_cache: bool = ..., cache_dtype: _Optional[str] = ..., max_adapters: _Optional[int] = ..., max_adapter_rank: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., pooling: _Optional[str] = ..., hidden_size: _Optional[int] = ..., embeds_only: bool = ..., logits: bool = ..., image_token_id: _Optional[int] = ..., patch_values: _Optional[int] = ..., patch_dtype: _Optional[str] = ..., image_horizon: _Optional[str] = ..., max_images: _Optional[int] = ..., max_image_patches: _Optional[int] = ..., max_image_tokens: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("generate", "cancel")
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    generate: Generate
    cancel: Cancel
    def __init__(self, generate: _Optional[_Union[Generate, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("id", "prompt", "sampling", "max_new_tokens", "min_new_tokens", "stop_token_ids", "ignore_eos", "timeout_seconds", "cache_salt", "priority", "traceparent", "queue_timeout_seconds", "caller", "grammar", "reasoning", "adapter", "beam_search", "pooling", "logits", "resume", "images")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    id: int
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    timeout_seconds: float
    cache_salt: bytes
    priority: int
    traceparent: str
    queue_timeout_seconds: float
    caller: int
    grammar: Grammar
    reasoning: Reasoning
    adapter: str
    beam_search: BeamSearch
    pooling: str
    logits: str
    resume: Resume
    images: _containers.RepeatedCompositeFieldContainer[Image]
    def __init__(self, id: _Optional[int] = ..., prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., timeout_seconds: _Optional[float] = ..., cache_salt: _Optional[bytes] = ..., priority: _Optional[int] = ..., traceparent: _Optional[str] = ..., queue_timeout_seconds: _Optional[float] = ..., caller: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., reasoning: _Optional[_Union[Reasoning, _Mapping]] = ..., adapter: _Optional[str] = ..., beam_search: _Optional[_Union[BeamSearch, _Mapping]] = ..., pooling: _Optional[str] = ..., logits: _Optional[str] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., images: _Optional[_Iterable[_Union[Image, _Mapping]]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("digest", "offset", "length", "tiles", "height", "width", "patches", "dtype")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    offset: int
    length: int
    tiles: _containers.RepeatedCompositeFieldContainer[Tile]
    height: int
    width: int
    patches: bytes
    dtype: str
    def __init__(self, digest: _Optional[bytes] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., tiles: _Optional[_Iterable[_Union[Tile, _Mapping]]] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., patches: _Optional[bytes] = ..., dtype: _Optional[str] = ...) -> None: ...

class Tile(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("generated", "surprise")
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    SURPRISE_FIELD_NUMBER: _ClassVar[int]
    generated: _containers.RepeatedScalarFieldContainer[int]
    surprise: float
    def __init__(self, generated: _Optional[_Iterable[int]] = ..., surprise: _Optional[float] = ...) -> None: ...

class BeamSearch(_message.Message):
    __slots__ = ("width", "answers", "length_penalty", "early_stopping")
    class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HEURISTIC: _ClassVar[BeamSearch.EarlyStopping]
        WIDTH: _ClassVar[BeamSearch.EarlyStopping]
        NEVER: _ClassVar[BeamSearch.EarlyStopping]
    HEURISTIC: BeamSearch.EarlyStopping
    WIDTH: BeamSearch.EarlyStopping
    NEVER: BeamSearch.EarlyStopping
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    width: int
    answers: int
    length_penalty: float
    early_stopping: BeamSearch.EarlyStopping
    def __init__(self, width: _Optional[int] = ..., answers: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[BeamSearch.EarlyStopping, str]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("json_schema", "regex", "lark", "gbnf")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    LARK_FIELD_NUMBER: _ClassVar[int]
    GBNF_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    regex: str
    lark: str
    gbnf: str
    def __init__(self, json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., lark: _Optional[str] = ..., gbnf: _Optional[str] = ...) -> None: ...

class Reasoning(_message.Message):
    __slots__ = ("begin", "end", "budget")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    begin: _containers.RepeatedScalarFieldContainer[int]
    end: _containers.RepeatedScalarFieldContainer[int]
    budget: int
    def __init__(self, begin: _Optional[_Iterable[int]] = ..., end: _Optional[_Iterable[int]] = ..., budget: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "typical_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "frequency_over_length", "logit_bias", "seed", "top_logprobs", "processed_logprobs", "prompt_logprobs", "only_biased", "watermark_gamma", "watermark_delta", "bad_words", "samplers")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_OVER_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROCESSED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ONLY_BIASED_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_GAMMA_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_DELTA_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLERS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    typical_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    frequency_over_length: bool
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    top_logprobs: int
    processed_logprobs: bool
    prompt_logprobs: bool
    only_biased: bool
    watermark_gamma: float
    watermark_delta: float
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenIds]
    samplers: Samplers
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_over_length: bool = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., processed_logprobs: bool = ..., prompt_logprobs: bool = ..., only_biased: bool = ..., watermark_gamma: _Optional[float] = ..., watermark_delta: _Optional[float] = ..., bad_words: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., samplers: _Optional[_Union[Samplers, _Mapping]] = ...) -> None: ...

class Samplers(_message.Message):
    __slots__ = ("top_n_sigma", "top_a", "epsilon_cutoff", "eta_cutoff", "smoothing_factor", "smoothing_curve", "xtc_threshold", "xtc_probability", "dynatemp_range", "dynatemp_exponent", "skew", "mirostat_tau", "mirostat_eta", "repetition_range", "repetition_slope", "no_repeat_ngram_size", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "dry_breakers", "order", "penalties_first")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Samplers.Kind]
        TEMPERATURE: _ClassVar[Samplers.Kind]
        TOP_N_SIGMA: _ClassVar[Samplers.Kind]
        TOP_A: _ClassVar[Samplers.Kind]
        EPSILON_CUTOFF: _ClassVar[Samplers.Kind]
        ETA_CUTOFF: _ClassVar[Samplers.Kind]
        SMOOTHING_FACTOR: _ClassVar[Samplers.Kind]
        XTC: _ClassVar[Samplers.Kind]
        TOP_K: _ClassVar[Samplers.Kind]
        TOP_P: _ClassVar[Samplers.Kind]
        TYPICAL_P: _ClassVar[Samplers.Kind]
        MIN_P: _ClassVar[Samplers.Kind]
        SKEW: _ClassVar[Samplers.Kind]
        MIROSTAT: _ClassVar[Samplers.Kind]
    NONE: Samplers.Kind
    TEMPERATURE: Samplers.Kind
    TOP_N_SIGMA: Samplers.Kind
    TOP_A: Samplers.Kind
    EPSILON_CUTOFF: Samplers.Kind
    ETA_CUTOFF: Samplers.Kind
    SMOOTHING_FACTOR: Samplers.Kind
    XTC: Samplers.Kind
    TOP_K: Samplers.Kind
    TOP_P: Samplers.Kind
    TYPICAL_P: Samplers.Kind
    MIN_P: Samplers.Kind
    SKEW: Samplers.Kind
    MIROSTAT: Samplers.Kind
    TOP_N_SIGMA_FIELD_NUMBER: _ClassVar[int]
    TOP_A_FIELD_NUMBER: _ClassVar[int]
    EPSILON_CUTOFF_FIELD_NUMBER: _ClassVar[int]
    ETA_CUTOFF_FIELD_NUMBER: _ClassVar[int]
    SMOOTHING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    SMOOTHING_CURVE_FIELD_NUMBER: _ClassVar[int]
    XTC_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    XTC_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    DYNATEMP_RANGE_FIELD_NUMBER: _ClassVar[int]
    DYNATEMP_EXPONENT_FIELD_NUMBER: _ClassVar[int]
    SKEW_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_TAU_FIELD_NUMBER: _ClassVar[int]
    MIROSTAT_ETA_FIELD_NUMBER: _ClassVar[int]
    REPETITION_RANGE_FIELD_NUMBER: _ClassVar[int]
    REPETITION_SLOPE_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRY_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    DRY_BASE_FIELD_NUMBER: _ClassVar[int]
    DRY_ALLOWED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DRY_RANGE_FIELD_NUMBER: _ClassVar[int]
    DRY_BREAKERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIRST_FIELD_NUMBER: _ClassVar[int]
    top_n_sigma: float
    top_a: float
    epsilon_cutoff: float
    eta_cutoff: float
    smoothing_factor: float
    smoothing_curve: float
    xtc_threshold: float
    xtc_probability: float
    dynatemp_range: float
    dynatemp_exponent: float
    skew: float
    mirostat_tau: float
    mirostat_eta: float
    repetition_range: int
    repetition_slope: float
    no_repeat_ngram_size: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_breakers: _containers.RepeatedScalarFieldContainer[int]
    order: _containers.RepeatedScalarFieldContainer[Samplers.Kind]
    penalties_first: bool
    def __init__(self, top_n_sigma: _Optional[float] = ..., top_a: _Optional[float] = ..., epsilon_cutoff: _Optional[float] = ..., eta_cutoff: _Optional[float] = ..., smoothing_factor: _Optional[float] = ..., smoothing_curve: _Optional[float] = ..., xtc_threshold: _Optional[float] = ..., xtc_probability: _Optional[float] = ..., dynatemp_range: _Optional[float] = ..., dynatemp_exponent: _Optional[float] = ..., skew: _Optional[float] = ..., mirostat_tau: _Optional[float] = ..., mirostat_eta: _Optional[float] = ..., repetition_range: _Optional[int] = ..., repetition_slope: _Optional[float] = ..., no_repeat_ngram_size: _Optional[int] = ..., dry_multiplier: _Optional[float] = ..., dry_base: _Optional[float] = ..., dry_allowed_length: _Optional[int] = ..., dry_range: _Optional[int] = ..., dry_breakers: _Optional[_Iterable[int]] = ..., order: _Optional[_Iterable[_Union[Samplers.Kind, str]]] = ..., penalties_first: bool = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StepEvents(_message.Message):
    __slots__ = ("step", "stats", "events", "adapters", "pages")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    step: int
    stats: Stats
    events: _containers.RepeatedCompositeFieldContainer[RequestEvent]
    adapters: AdapterList
    pages: CachedPages
    def __init__(self, step: _Optional[int] = ..., stats: _Optional[_Union[Stats, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RequestEvent, _Mapping]]] = ..., adapters: _Optional[_Union[AdapterList, _Mapping]] = ..., pages: _Optional[_Union[CachedPages, _Mapping]] = ...) -> None: ...

class CachedPages(_message.Message):
    __slots__ = ("reset", "cached", "uncached")
    RESET_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_FIELD_NUMBER: _ClassVar[int]
    reset: bool
    cached: _containers.RepeatedScalarFieldContainer[int]
    uncached: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reset: bool = ..., cached: _Optional[_Iterable[int]] = ..., uncached: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("id", "tokens", "finish", "error", "prompt", "preemptions", "sampling_steps", "draft_tokens", "accepted_draft_tokens", "beams", "embedding", "logits", "surprise")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    SURPRISE_FIELD_NUMBER: _ClassVar[int]
    id: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finish: FinishReason
    error: str
    prompt: Prompt
    preemptions: int
    sampling_steps: int
    draft_tokens: int
    accepted_draft_tokens: int
    beams: _containers.RepeatedCompositeFieldContainer[Beam]
    embedding: bytes
    logits: bytes
    surprise: float
    def __init__(self, id: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finish: _Optional[_Union[FinishReason, str]] = ..., error: _Optional[str] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., preemptions: _Optional[int] = ..., sampling_steps: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ..., beams: _Optional[_Iterable[_Union[Beam, _Mapping]]] = ..., embedding: _Optional[bytes] = ..., logits: _Optional[bytes] = ..., surprise: _Optional[float] = ...) -> None: ...

class Beam(_message.Message):
    __slots__ = ("tokens", "finish", "score")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finish: FinishReason
    score: float
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finish: _Optional[_Union[FinishReason, str]] = ..., score: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "logprob", "top", "rank")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[Alternative]
    rank: int
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., rank: _Optional[int] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("id", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("cached_tokens", "queue_seconds", "tokens")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    queue_seconds: float
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, cached_tokens: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ("waiting", "running", "pages_total", "pages_used", "pages_cached", "preemptions", "prompt_tokens", "cached_prompt_tokens", "generated_tokens", "step_failures", "compiles_after_warmup", "step_prefill_tokens", "step_decode_tokens", "step_seconds", "step_answered_tokens", "grammars_compiled", "grammar_cache_hits", "grammar_refusals", "grammar_compile_seconds", "grammar_mask_seconds", "running_adapters", "waiting_adapters", "drafts", "draft_tokens", "accepted_draft_tokens", "queued_prefill_tokens", "images_encoded", "images_reused")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    PAGES_CACHED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_FAILURES_FIELD_NUMBER: _ClassVar[int]
    COMPILES_AFTER_WARMUP_FIELD_NUMBER: _ClassVar[int]
    STEP_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_ANSWERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_COMPILED_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_REFUSALS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_COMPILE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_MASK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_ENCODED_FIELD_NUMBER: _ClassVar[int]
    IMAGES_REUSED_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    running: int
    pages_total: int
    pages_used: int
    pages_cached: int
    preemptions: int
    prompt_tokens: int
    cached_prompt_tokens: int
    generated_tokens: int
    step_failures: int
    compiles_after_warmup: int
    step_prefill_tokens: int
    step_decode_tokens: int
    step_seconds: float
    step_answered_tokens: int
    grammars_compiled: int
    grammar_cache_hits: int
    grammar_refusals: int
    grammar_compile_seconds: float
    grammar_mask_seconds: float
    running_adapters: _containers.RepeatedScalarFieldContainer[str]
    waiting_adapters: _containers.RepeatedScalarFieldContainer[str]
    drafts: int
    draft_tokens: int
    accepted_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    queued_prefill_tokens: int
    images_encoded: int
    images_reused: int
    def __init__(self, waiting: _Optional[int] = ..., running: _Optional[int] = ..., pages_total: _Optional[int] = ..., pages_used: _Optional[int] = ..., pages_cached: _Optional[int] = ..., preemptions: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., step_failures: _Optional[int] = ..., compiles_after_warmup: _Optional[int] = ..., step_prefill_tokens: _Optional[int] = ..., step_decode_tokens: _Optional[int] = ..., step_seconds: _Optional[float] = ..., step_answered_tokens: _Optional[int] = ..., grammars_compiled: _Optional[int] = ..., grammar_cache_hits: _Optional[int] = ..., grammar_refusals: _Optional[int] = ..., grammar_compile_seconds: _Optional[float] = ..., grammar_mask_seconds: _Optional[float] = ..., running_adapters: _Optional[_Iterable[str]] = ..., waiting_adapters: _Optional[_Iterable[str]] = ..., drafts: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[_Iterable[int]] = ..., queued_prefill_tokens: _Optional[int] = ..., images_encoded: _Optional[int] = ..., images_reused: _Optional[int] = ...) -> None: ...

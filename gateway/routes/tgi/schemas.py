"""What TGI's routes accept, field by field: types only. Ranges are checked by `validation.py`, because their errors
differ; here they are told to the OpenAPI document, as far as they are not a server's own.

The integers are as wide as in TGI; a negative number in an unsigned field is a wrong shape, not a wrong value.
Fields TGI does not let be null are not optional here either.
"""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from gateway.http.body import StrictModel
from gateway.text.sampling_defaults import MAX_SCALE, MIN_SCALE
from gateway.text.stop_strings import MAX_STOP_CHARACTERS

U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def told(type: str, **limits: float) -> WithJsonSchema:
    return WithJsonSchema({"type": type, **limits})


Temperature = Annotated[float, told("number", exclusiveMinimum=0, maximum=MAX_SCALE)]
RepetitionPenalty = Annotated[float, told("number", minimum=MIN_SCALE, maximum=MAX_SCALE)]
FrequencyPenalty = Annotated[float, told("number", minimum=-2, maximum=2)]
Share = Annotated[float, told("number", exclusiveMinimum=0, exclusiveMaximum=1)]
TopK = Annotated[I32, told("integer", minimum=1, maximum=2**31 - 1)]
NewTokens = Annotated[U32, told("integer", minimum=1, maximum=2**32 - 1)]
Truncate = Annotated[U64, told("integer", minimum=1)]
StopText = Annotated[str, told("string", minLength=1, maxLength=MAX_STOP_CHARACTERS)]
Text = Annotated[str, told("string", minLength=1)]


class Parameters(StrictModel):
    """`parameters` of a request; None means not set."""

    best_of: U64 | None = None
    temperature: Temperature | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    top_k: TopK | None = None
    top_p: Share | None = None
    typical_p: Share | None = None
    do_sample: bool = False
    max_new_tokens: NewTokens | None = None
    return_full_text: bool | None = None
    stop: Annotated[list[StopText], Field(fail_fast=True)] = Field(default_factory=list)
    truncate: Truncate | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: U64 | None = None
    top_n_tokens: U32 | None = None
    grammar: Any = None
    adapter_id: str | None = None


class GenerateRequest(StrictModel):
    """Body of `/generate` and `/generate_stream`; `stream` counts on `POST /` only."""

    inputs: Text
    parameters: Parameters | None = None
    stream: bool = False

    @property
    def settings(self) -> Parameters:
        """`parameters`, or TGI's defaults for a request without any, which sample where `{}` would not."""
        return Parameters(do_sample=True) if self.parameters is None else self.parameters


class TokenizeInputs(StrictModel):
    """Body of `/tokenize`, which TGI's clients send with the parameters of `/generate`: they do not matter to it."""

    inputs: str

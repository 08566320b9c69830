"""The bodies of TGI's routes: the types of their fields.

Ranges are checked by `validation.py`, because TGI words errors of type and of range differently; here they are only
documented, unless they depend on the server's options. Integers are as wide as in TGI: a negative number in an unsigned
field is an error of type. Fields that may not be null in TGI may not be null here.
"""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from gateway.http.body import StrictModel
from gateway.routes.tgi.grammar import Grammar
from gateway.samplers.fields import SamplerFields
from gateway.text.sampling_defaults import MAX_SCALE, MIN_SCALE
from gateway.text.stop_strings import MAX_STOP_CHARACTERS

U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


def documented(type: str, **limits: float) -> WithJsonSchema:
    return WithJsonSchema({"type": type, **limits})


Temperature = Annotated[float, documented("number", exclusiveMinimum=0, maximum=MAX_SCALE)]
RepetitionPenalty = Annotated[float, documented("number", minimum=MIN_SCALE, maximum=MAX_SCALE)]
FrequencyPenalty = Annotated[float, documented("number", minimum=-2, maximum=2)]
Share = Annotated[float, documented("number", exclusiveMinimum=0, exclusiveMaximum=1)]
TopK = Annotated[I32, documented("integer", minimum=1, maximum=2**31 - 1)]
NewTokens = Annotated[U32, documented("integer", minimum=1, maximum=2**32 - 1)]
Truncate = Annotated[U64, documented("integer", minimum=1)]
StopText = Annotated[str, documented("string", minLength=1, maxLength=MAX_STOP_CHARACTERS)]
Text = Annotated[str, documented("string", minLength=1)]


class Parameters(SamplerFields):
    """`parameters` of a request, TGI's and those of further samplers; None: not set."""

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
    grammar: Grammar | None = None
    adapter_id: str | None = None


class GenerateRequest(StrictModel):
    """Body of `/generate`, `/generate_stream` and `POST /`; only the last heeds `stream`."""

    inputs: Text
    parameters: Parameters | None = None
    stream: bool = False

    @property
    def settings(self) -> Parameters:
        """`parameters`. TGI samples if there are none, and is greedy if they are `{}`."""
        return Parameters(do_sample=True) if self.parameters is None else self.parameters


class TokenizeInputs(StrictModel):
    """Body of `/tokenize`. TGI's clients send the parameters of `/generate` too, which are ignored."""

    inputs: str

"""What TGI's routes accept, field by field: types only. Ranges are `validation.py`'s, because their errors differ.

The integers are as wide as in TGI; a negative number in an unsigned field is a wrong shape, not a wrong value.
Fields TGI does not let be null are not optional here either.
"""

from typing import Annotated, Any

from pydantic import Field

from gateway.body import StrictModel

U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


class Parameters(StrictModel):
    """`parameters` of a request; None means not set."""

    best_of: U64 | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: I32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: U32 | None = None
    return_full_text: bool | None = None
    stop: list[str] = Field(default_factory=list)
    truncate: U64 | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: U64 | None = None
    top_n_tokens: U32 | None = None
    grammar: Any = None
    adapter_id: str | None = None


class GenerateRequest(StrictModel):
    """Body of `/generate`, `/generate_stream` and `/tokenize`; `stream` counts on `POST /` only."""

    inputs: str
    parameters: Parameters | None = None
    stream: bool = False

    @property
    def settings(self) -> Parameters:
        """`parameters`, or TGI's defaults for a request without any, which sample where `{}` would not."""
        return Parameters(do_sample=True) if self.parameters is None else self.parameters

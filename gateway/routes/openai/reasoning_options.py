"""OpenRouter's and SGLang's object `reasoning` of a chat, which says at once what other fields say too."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from gateway.errors import RequestError
from gateway.http.body import StrictModel

Budget = Annotated[int, Field(ge=-1, le=2**31 - 1)]  # of tokens; -1 is no limit
USUAL_EFFORT, NO_EFFORT = "medium", "none"


class ReasoningOptions(StrictModel):
    enabled: bool | None = None
    effort: Annotated[str, Field(max_length=16)] | None = None
    max_tokens: Budget | None = None
    exclude: bool | None = None

    @model_validator(mode="after")
    def _agree(self) -> "ReasoningOptions":
        if self.enabled is not None and self.effort and self.enabled != (self.effort != NO_EFFORT):
            message = (
                f"reasoning.enabled {str(self.enabled).lower()} and reasoning.effort {self.effort} exclude each other"
            )
            raise RequestError.invalid(message, "reasoning")
        return self

    def fields(self, effort: str | None) -> dict[str, Any]:
        """What it says, by the names of a chat's other fields, of which one asks for `effort`."""
        some = effort if effort and effort != NO_EFFORT else USUAL_EFFORT
        usual = None if self.enabled is None else some if self.enabled else NO_EFFORT
        said = {
            "reasoning_effort": self.effort or usual,
            "thinking_token_budget": self.max_tokens,
            "include_reasoning": None if self.exclude is None else not self.exclude,
        }
        return {name: value for name, value in said.items() if value is not None}

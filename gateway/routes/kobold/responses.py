"""The answers of these routes, for the OpenAPI document."""

from typing import Literal

from gateway.http.openapi import AnswerModel

EVENTS = "JSON: `token`, a piece of the text, and `finish_reason`, which is the text `null` up to the last event"


class Text(AnswerModel):
    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int


class Generated(AnswerModel):
    results: list[Text]


class TextSoFar(AnswerModel):
    text: str


class Checked(AnswerModel):
    results: list[TextSoFar]


class Aborted(AnswerModel):
    """KoboldCpp writes truth values as texts."""

    success: Literal["true", "false"]
    done: Literal["true", "false"]


class Tokens(AnswerModel):
    value: int
    ids: list[int]


class Detokenized(AnswerModel):
    result: str
    success: Literal[True]


class Name(AnswerModel):
    result: str


class Number(AnswerModel):
    value: int


class SoftPrompt(AnswerModel):
    value: Literal[""]


class SoftPrompts(AnswerModel):
    values: list[str]


class Empty(AnswerModel):
    """Nothing."""


class Version(AnswerModel):
    result: Literal["KoboldCpp"]
    version: str
    protected: bool
    llm: bool
    txt2img: bool
    vision: bool
    audio: bool
    transcribe: bool
    multiplayer: bool
    websearch: bool
    tts: bool
    embeddings: bool
    savedata: bool
    admin: int


class Performance(AnswerModel):
    last_process: float
    last_eval: float
    last_token_count: int
    last_input_count: int
    last_process_speed: float
    last_eval_speed: float
    stop_reason: Literal[-1, 0, 1]
    queue: int
    idle: Literal[0, 1]
    uptime: float
    quiet: bool

"""vLLM's `/tokenize`, `/detokenize` and `/tokenizer_info`."""

import asyncio
from typing import Annotated

from fastapi import Request, Response
from pydantic import Field
from starlette.responses import JSONResponse

from gateway.http.body import StrictModel, read_body
from gateway.http.encoding import json_list, json_text
from gateway.request.gateway_state import Gateway
from gateway.request.lifecycle import serving
from gateway.routes.openai import validation
from gateway.routes.openai.chat_prompt import read_chat, with_written_images
from gateway.routes.openai.schemas import ChatRequest

MAX_IDS = 1 << 20


class TokenizeText(StrictModel):
    """A text to tokenise; special tokens are added unless told not to."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(ChatRequest):
    """A chat to render and tokenise, with all fields that shape the prompt of `/v1/chat/completions`."""

    return_token_strs: bool | None = None


class Detokenize(StrictModel):
    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=MAX_IDS, fail_fast=True)]
    skip_special_tokens: bool | None = None  # SGLang's; vLLM always shows them


async def tokenize_text(request: Request, gateway: Gateway) -> Response:
    body = await read_body(request, TokenizeText)
    model, description = serving(gateway)
    await validation.check_model(body.model, gateway, description)
    special = body.add_special_tokens is not False
    ids = await model.encode(body.prompt, add_special_tokens=special, field="prompt")
    return await _answer(gateway, ids, show=bool(body.return_token_strs))


async def tokenize_chat(request: Request, gateway: Gateway) -> Response:
    body = await read_body(request, TokenizeChat)
    model, description = serving(gateway)
    await validation.check_model(body.model, gateway, description)
    chat = await read_chat(gateway, model, with_written_images(gateway, body))
    return await _answer(gateway, chat.ids, show=bool(body.return_token_strs))


async def detokenize(request: Request, gateway: Gateway) -> Response:
    body = await read_body(request, Detokenize)
    model, description = serving(gateway)
    await validation.check_model(body.model, gateway, description)
    validation.refuse_unknown_ids(body.tokens, description.vocab_size, "tokens")
    text = await model.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
    return JSONResponse({"prompt": text})


async def info(gateway: Gateway) -> Response:
    model, _ = serving(gateway)
    fields = {**model.special_tokens, "tokenizer_class": model.tokenizer_class, "chat_template": model.template}
    return JSONResponse(fields)


async def _answer(gateway: Gateway, ids: list[int], *, show: bool) -> Response:
    model, description = serving(gateway)
    piece, most = model.tokenizer.piece, description.max_total_tokens

    def encode_answer() -> str:
        pieces = json_list(json_text(piece(id)) for id in ids) if show else "null"
        tokens = json_list(str(id) for id in ids)
        return f'{{"count":{len(ids)},"max_model_len":{most},"tokens":{tokens},"token_strs":{pieces}}}'

    return Response(await asyncio.to_thread(encode_answer), media_type="application/json")

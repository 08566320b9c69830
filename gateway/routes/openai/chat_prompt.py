"""The messages of a chat as the model reads them: one text, made by its template, and that text's token ids."""

from gateway.routes.openai.history import template_messages
from gateway.routes.openai.schemas import ChatRequest
from gateway.text.model_text import ModelText


async def prompt_ids(model: ModelText, body: ChatRequest) -> list[int]:
    """The token ids of `prompt_text`. Raises RequestError."""
    return await encoded(model, body, await prompt_text(model, body))


async def encoded(model: ModelText, body: ChatRequest, text: str) -> list[int]:
    """The token ids of `text`, which is `prompt_text`. Raises RequestError."""
    return await model.encode(text, add_special_tokens=bool(body.add_special_tokens), field="messages")


async def prompt_text(model: ModelText, body: ChatRequest) -> str:
    """What the template makes of the chat. Raises RequestError."""
    continues = bool(body.continue_final_message)
    return await model.render(
        messages=template_messages(body.messages, knows_developer=model.knows_developer),
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        tools=body.tool_use.shown,
        tool_prompt=body.tool_prompt,
        variables=body.template_variables,
        template=body.chat_template,
    )

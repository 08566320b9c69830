"""The messages of a chat as the model reads them: one text, made by its template, and that text's token ids."""

from gateway.routes.openai.schemas import ChatRequest
from gateway.text.model_text import ModelText


async def prompt_ids(model: ModelText, body: ChatRequest) -> list[int]:
    """The token ids of `prompt_text`. Raises RequestError."""
    text = await prompt_text(model, body)
    return await model.encode(text, add_special_tokens=bool(body.add_special_tokens), field="messages")


async def prompt_text(model: ModelText, body: ChatRequest) -> str:
    """What the template makes of the chat. Raises RequestError."""
    continues = bool(body.continue_final_message)
    return await model.render(
        messages=[message.fields(_role(model, message.role)) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continue_final_message=continues,
        variables=body.template_variables,
        template=body.chat_template,
    )


def _role(model: ModelText, role: str) -> str:
    """`developer` is OpenAI's newer word for `system`; few templates know it."""
    return "system" if role == "developer" and not model.knows_developer else role

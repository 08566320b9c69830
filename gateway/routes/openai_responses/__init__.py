"""OpenAI's Responses API: `/v1/responses`, another wording of the chats of `gateway/routes/openai`.

A body becomes a `ChatRequest`, a choice's pieces become output items; nothing is generated in another way.
"""

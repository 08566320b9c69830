"""Anthropic's dialect: its Messages API, in front of the same chats as OpenAI's."""

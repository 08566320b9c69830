"""OpenAI's `/v1`, as its own clients expect it, with the extensions that vLLM made common."""

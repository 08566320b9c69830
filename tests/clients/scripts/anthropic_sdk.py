"""The `anthropic` SDK, strictly validating, synchronous and not: what it makes of answers, whole and streamed."""

import asyncio
import json
import sys

import anthropic

job = json.loads(sys.argv[1])
OPTIONS = {"base_url": job["url"], "api_key": "unused", "max_retries": 0, "_strict_response_validation": True}
client, later = anthropic.Anthropic(**OPTIONS), anthropic.AsyncAnthropic(**OPTIONS)
ASK = {"model": job["model"], "max_tokens": 40, "messages": [{"role": "user", "content": job["user"]}]}
GREEDY = {**ASK, "extra_body": {"temperature": 0}}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
FORCED = {**ASK, "max_tokens": 300, "tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}}


def text(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def brief(message: anthropic.types.Message) -> dict:
    return {"text": text(message), "stop_reason": message.stop_reason, "output": message.usage.output_tokens}


def streamed() -> dict:
    with client.messages.stream(**GREEDY) as stream:
        said = "".join(stream.text_stream)
        return {**brief(stream.get_final_message()), "joined": said}


async def asynchronous() -> list[dict]:
    async def whole() -> dict:
        return brief(await later.messages.create(**GREEDY))

    async def in_events() -> dict:
        async with later.messages.stream(**GREEDY) as stream:
            return brief(await stream.get_final_message())

    return await asyncio.gather(whole(), in_events(), whole(), in_events())


def called() -> dict:
    """A forced call, whole and streamed, and the answer to its result."""
    whole = client.messages.create(**FORCED)
    with client.messages.stream(**FORCED) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    [call] = whole.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "22 C"}
    messages = [*ASK["messages"], whole.to_param(), {"role": "user", "content": [result]}]
    after = client.messages.create(**{**FORCED, "messages": messages, "tool_choice": {"type": "none"}, "max_tokens": 5})
    return {
        "whole": {"name": call.name, "input": call.input, "stop_reason": whole.stop_reason},
        "streamed": {"input": final.content[0].input, "snapshots": len(snapshots), "last": snapshots[-1]},
        "after": after.usage.input_tokens + after.usage.cache_read_input_tokens,
    }


def run_by_the_sdk() -> list[str]:
    """The names of the tools that the SDK's own loop runs; it asks for a thread first."""
    ran = []

    @anthropic.beta_tool
    def get_time(zone: str) -> str:
        """The time in a zone."""
        ran.append("get_time")
        return "noon"

    forced = {"tool_choice": {"type": "tool", "name": "get_time", "disable_parallel_tool_use": True}}
    runner = client.beta.messages.tool_runner(**{**GREEDY, "max_tokens": 300}, tools=[get_time], **forced)
    next(iter(runner))
    runner.generate_tool_call_response()
    return ran


def counted() -> list[int]:
    count = client.messages.count_tokens(
        model=job["model"], messages=ASK["messages"], tools=[WEATHER], system="Be kind."
    )
    usage = client.messages.create(**{**ASK, "tools": [WEATHER], "system": "Be kind.", "max_tokens": 1}).usage
    return [count.input_tokens, usage.input_tokens + usage.cache_read_input_tokens]


def parsed() -> dict:
    """JSON of a schema."""
    form = {"type": "json_schema", "schema": WEATHER["input_schema"]}
    message = client.messages.create(**{**ASK, "max_tokens": 300, "output_config": {"format": form}})
    return json.loads(text(message))


stopped = client.messages.create(**GREEDY, stop_sequences=[job["stop"]])
prefilled = client.messages.create(
    **{**GREEDY, "messages": [*ASK["messages"], {"role": "assistant", "content": job["begin"]}]}
)
print(
    json.dumps(
        {
            "whole": brief(client.messages.create(**GREEDY)),
            "events": [event.type for event in client.messages.create(**{**GREEDY, "max_tokens": 1}, stream=True)],
            "streamed": streamed(),
            "async": asyncio.run(asynchronous()),
            "stopped": {**brief(stopped), "sequence": stopped.stop_sequence},
            "prefilled": brief(prefilled),
            "called": called(),
            "run": run_by_the_sdk(),
            "counted": counted(),
            "models": [model.id for model in client.models.list()],
            "model": client.models.retrieve(job["model"]).display_name,
            "parsed": parsed(),
            "beta": brief(client.beta.messages.create(**GREEDY, betas=["context-management-2025-06-27"])),
        }
    )
)

"""How a prompt is cut: from the left, behind a memory that stays, to the context less the answer."""

import pytest

from gateway.routes.kobold.lengths import Lengths
from tests.gateway.fixtures import serve
from tests.gateway.routes.kobold.asking import generated, ids_of, sent
from tests.gateway.toys import BOS


@pytest.mark.parametrize(
    ("context", "answer", "served", "expected"),
    [
        (None, 100, 1000, Lengths(100, 900)),
        (500, 100, 1000, Lengths(100, 400)),
        (5000, 100, 1000, Lengths(100, 900)),  # no more than is served
        (1000, 900, 1000, Lengths(800, 200)),  # a fifth is left to the prompt
        (50, 48, 1000, Lengths(34, 16)),  # or 16 tokens
        (8, 100, 1000, Lengths(4, 4)),
    ],
)
def test_the_context_is_shared_as_by_koboldcpp(
    context: int | None, answer: int, served: int, expected: Lengths
) -> None:
    assert Lengths.of(context, answer, served) == expected


async def test_a_prompt_that_fits_is_as_on_every_other_route() -> None:
    async with serve() as app:
        await app.post("/v1/completions", prompt="hello world")
        assert (await sent(app, prompt="hello world")).prompt == app.engine.requests[0].prompt


async def test_a_prompt_loses_its_beginning_but_not_the_token_in_front_of_every_text() -> None:
    text = "".join(f" a{number}" for number in range(40))
    async with serve() as app:
        request = await sent(app, prompt=text, max_length=4, max_context_length=24)
        assert list(request.prompt) == [BOS, *ids_of(text)[-19:]]
        assert (await generated(app, prompt=text, max_length=4))["prompt_tokens"] == 60


async def test_the_memory_stays_in_front() -> None:
    text = "".join(f" a{number}" for number in range(40))
    async with serve() as app:
        whole = await sent(app, memory="hello world", prompt=" stop", max_length=4)
        assert list(whole.prompt) == [BOS, *ids_of("hello world"), *ids_of(" stop")]
        cut = await sent(app, memory="hello world", prompt=text, max_length=4, max_context_length=24)
        memory = ids_of("hello world")
        assert list(cut.prompt) == [BOS, *memory, *ids_of(text)[-(19 - len(memory)) :]]


async def test_a_memory_that_is_too_long_leaves_four_tokens_to_the_prompt() -> None:
    memory = "".join(f" a{number}" for number in range(40))
    async with serve() as app:
        request = await sent(app, memory=memory, prompt="hello world", max_length=4, max_context_length=24)
        assert list(request.prompt) == [BOS, *ids_of(memory)[-15:], *ids_of("hello world")[-4:]]


async def test_the_servers_own_limit_of_prompts_holds() -> None:
    async with serve(max_input_tokens=10) as app:
        request = await sent(app, prompt="".join(f" a{number}" for number in range(40)), max_length=4)
        assert len(request.prompt) == 10

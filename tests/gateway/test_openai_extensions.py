"""What vLLM's clients send beyond OpenAI's fields, and the legacy `best_of`."""

from collections.abc import AsyncGenerator
from typing import Any

from jaxengine.rpc import engine_pb2 as pb
from tests.gateway.fixtures import HELLO, Served, serve
from tests.gateway.toys import BOS, byte_level

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "lo"}]}
[LO] = byte_level().encode("lo", add_special_tokens=False).ids


async def test_only_allowed_tokens_may_be_drawn_with_the_biases_given_for_them() -> None:
    async with serve() as served:
        body = {"prompt": "lo", "allowed_token_ids": [5, 7], "logit_bias": {"5": 1.5, "9": 2}}
        await served.post("/v1/completions", body)
        [request] = served.engine.requests
        assert request.sampling.only_biased
        assert dict(request.sampling.logit_bias) == {5: 1.5, 7: 0.0}


async def test_prompt_logprobs_list_every_prompt_token_but_the_first() -> None:
    expected = [None, {str(LO): {"logprob": -0.5, "rank": None, "decoded_token": "lo"}}]
    async with serve() as served:
        answer = (await served.post("/v1/completions", prompt="lo", prompt_logprobs=2)).json()
        assert answer["choices"][0]["prompt_logprobs"] == expected
        chat = (await served.post("/v1/chat/completions", {**CHAT, "prompt_logprobs": 0})).json()
        assert chat["prompt_logprobs"][0] is None
        assert all(len(each) == 1 for each in chat["prompt_logprobs"][1:])
        assert [request.sampling.top_logprobs for request in served.engine.requests] == [2, 0]


async def test_prompt_logprobs_do_not_widen_those_of_the_answer() -> None:
    async with serve() as served:
        body = {"prompt": "lo", "prompt_logprobs": 5, "logprobs": 1, "max_tokens": 1}
        [choice] = (await served.post("/v1/completions", body)).json()["choices"]
        assert len(choice["logprobs"]["top_logprobs"][0]) == 1


def likelier_by_seed(served: Served) -> None:
    """An engine whose sequences are the likelier the higher their seed."""

    async def generate(request: pb.Generate) -> AsyncGenerator[pb.RequestEvent, None]:
        served.engine.requests.append(request)
        token = pb.Token(id=HELLO[request.sampling.seed % 5], logprob=request.sampling.seed - 10.0)
        yield pb.RequestEvent(tokens=[token], finish=pb.LENGTH, prompt=pb.Prompt())

    served.engine.generate = generate  # type: ignore[method-assign]


async def test_best_of_answers_the_likeliest_and_counts_them_all() -> None:
    async with serve() as served:
        likelier_by_seed(served)
        body = {"prompt": ["lo", "lo"], "best_of": 4, "n": 2, "seed": 0, "max_tokens": 1}
        answer = (await served.post("/v1/completions", body)).json()
        assert [choice["text"] for choice in answer["choices"]] == ["or", " w"] * 2
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["completion_tokens"] == 8


async def test_a_template_of_the_request_replaces_the_models() -> None:
    async with serve() as served:
        template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ tone }}"
        body = {**CHAT, "chat_template": template, "chat_template_kwargs": {"tone": "lo"}}
        await served.post("/v1/chat/completions", body)
        await served.post("/v1/chat/completions", CHAT)
        mine, own = (list(request.prompt) for request in served.engine.requests)
        assert mine == [LO, LO]
        assert own != mine


async def test_a_template_of_the_request_does_for_a_model_without_one() -> None:
    async with serve(template=None) as served:
        assert (await served.post("/v1/chat/completions", CHAT)).status_code == 400
        response = await served.post("/v1/chat/completions", {**CHAT, "chat_template": "lo"})
        assert response.status_code == 200


async def test_a_hostile_template_costs_its_sender_only() -> None:
    async with serve() as served:
        endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}" * 1
        response = await served.post("/v1/chat/completions", {**CHAT, "chat_template": endless + "{% endfor %}" * 2})
        assert response.status_code == 400
        assert "too much time" in response.json()["error"]["message"]
        escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
        refused = await served.post("/v1/chat/completions", {**CHAT, "chat_template": escape})
        assert "class" not in str([request.prompt for request in served.engine.requests]) and refused.status_code == 400
        assert (await served.post("/v1/chat/completions", CHAT)).status_code == 200


async def test_documents_reach_the_template() -> None:
    async with serve(template="{% for d in documents %}{{ d['text'] }}{% endfor %}") as served:
        await served.post("/v1/chat/completions", {**CHAT, "documents": [{"text": "lo"}, {"text": "lo"}]})
        [request] = served.engine.requests
        assert list(request.prompt) == [LO, LO] and BOS not in request.prompt

"""Chat templates: transformers' rendering as the reference, and templates that try to do harm."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import transformers

from gateway.errors import Kind, RequestError
from gateway.text.chat_template import ChatTemplate, TemplateError
from gateway.text.model_files import find_template, special_tokens
from gateway.text.template_renderer import TemplateRenderer
from tests.gateway.toys import TEMPLATE, byte_level
from tests.processes import PATIENCE

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello <|im_end|> 日本"},
    {"role": "assistant", "content": "world"},
]
TEMPLATES = {
    "chatml": TEMPLATE,
    "trimming": "{{ bos_token }}{% for m in messages %}\n  [{{ m.role }}] {{ m.content | trim }}{{ eos_token }}"
    "{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.content }}|{% endfor %}",
    "namespace and json": "{% set n = namespace(k=0) %}{% for m in messages %}{% set n.k = n.k + 1 %}{{ m | tojson }}"
    "{% endfor %}{{ n.k }}",
    "generation blocks": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "methods": "{% for m in messages %}{{ m.content.split(' ')[0].upper().startswith('H') }}{% endfor %}",
    "capitals": "{% for m in messages %}{{ m.content | capitalize }}{% endfor %}",
}


def reference(template: str, chat: list[dict[str, Any]] = CHAT, **arguments: Any) -> str:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    return str(tokenizer.apply_chat_template(chat, tokenize=False, **arguments))


def render(template: str, messages: list[dict[str, Any]] | None = None, **arguments: Any) -> str:
    compiled = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}, 10_000)
    return compiled.render(CHAT if messages is None else messages, **({"add_generation_prompt": False} | arguments))


@pytest.mark.parametrize("generation_prompt", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name: str, generation_prompt: bool) -> None:
    template = TEMPLATES[name]
    ours = render(template, add_generation_prompt=generation_prompt)
    assert ours == reference(template, add_generation_prompt=generation_prompt)


# Of models that see, whose text is a part of a message among images.
OF_PARTS = {
    "by kind": "{% for m in messages %}{{ m.role }}: {% for part in m['content'] %}{% if part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
    "selected": "{% for m in messages %}{{ m.role }}: {% for part in m['content'] | selectattr('type', 'equalto', "
    "'text') %}{{ part['text'] }}{% endfor %};{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
    "or text": "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}",
}


@pytest.mark.parametrize("name", OF_PARTS)
def test_a_template_that_looks_for_parts_gets_them_as_in_transformers(name: str) -> None:
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    ours = render(OF_PARTS[name], add_generation_prompt=True)
    assert ours == reference(OF_PARTS[name], parts, add_generation_prompt=True)
    assert all(message["content"] in ours for message in CHAT)
    assert render(OF_PARTS[name], continue_final_message=True).endswith("assistant: world")


@pytest.mark.parametrize("name", ["chatml", "trimming"])
def test_continuing_the_final_message_leaves_it_open_as_in_transformers(name: str) -> None:
    ours = render(TEMPLATES[name], continue_final_message=True)
    assert ours == reference(TEMPLATES[name], continue_final_message=True)
    assert ours.endswith("world")


def test_template_variables_are_seen() -> None:
    assert render("{{ tone }}", variables={"tone": "warm"}) == "warm"


def test_raise_exception_tells_the_templates_own_words() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_that_drops_the_message_can_not_be_continued() -> None:
    with pytest.raises(TemplateError, match="drops the final message"):
        render("nothing", continue_final_message=True)


def test_syntax_errors_name_the_line() -> None:
    with pytest.raises(TemplateError, match=r"not valid.*line 2"):
        render("\n{% for %}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ (messages | attr('__class__')) }}",
        "{% set _ = messages.append(1) %}",
        "{{ 'a' * 10000000 }}",
        "{{ [1] * 10000000 }}",
        "{{ 10000000 * 'a' }}",
        "{{ 10 ** 10000000 }}",
        "{% for i in range(100000) %}{% endfor %}",
        "{% for i in range(9999) %}0123456789{% endfor %}",
        "{{ messages[0] + 1 }}",
        "{{ no.such.thing }}",
        "{{ '{}'.format() }}",
        "{{ 'a'.encode('what a client wrote') }}",
        "{{ " + "(" * 4000 + "1" + ")" * 4000 + " }}",
        "{% for i in range(3) %}" * 30 + "{% endfor %}" * 30,
    ],
)
def test_the_sandbox_refuses(template: str) -> None:
    with pytest.raises(TemplateError):
        assert not render(template)  # an escape that Jinja renders as undefined is empty, and is refused here
        raise TemplateError("rendered to nothing")


@pytest_asyncio.fixture
async def renderers() -> AsyncIterator[list[TemplateRenderer]]:
    started: list[TemplateRenderer] = []
    yield started
    for renderer in started:
        await renderer.close()


BOMBS = {
    "time": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "memory": "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "format": "{{ '%0999999999d' % 1 }}",
    "padding": "{{ 'a'.center(3999999999) }}",
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_costs_its_own_request_only(name: str, renderers: list[TemplateRenderer]) -> None:
    template = "{% if messages[0].content == 'bomb' %}" + BOMBS[name] + "{% else %}fine{% endif %}"
    renderer = TemplateRenderer(template, {}, 10_000)
    renderers.append(renderer)
    with pytest.raises(RequestError) as refusal:
        bomb = [{"role": "user", "content": "bomb"}]
        await asyncio.wait_for(renderer.render(messages=bomb, add_generation_prompt=True), PATIENCE)
    assert refusal.value.kind is Kind.TEMPLATE
    text = await renderer.render(messages=[{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert text == "fine"


async def test_a_template_that_is_not_jinja_says_so_every_time(renderers: list[TemplateRenderer]) -> None:
    renderer = TemplateRenderer("{% for %}", {}, 10_000)
    renderers.append(renderer)
    for _ in range(2):
        with pytest.raises(RequestError, match="not valid"):
            await renderer.render(messages=[], add_generation_prompt=True)


async def test_answers_stay_with_their_questions(renderers: list[TemplateRenderer]) -> None:
    renderer = TemplateRenderer("{{ messages[0].content }}", {}, 10_000)
    renderers.append(renderer)

    async def ask(number: int) -> str:
        return await renderer.render(messages=[{"role": "user", "content": str(number)}], add_generation_prompt=True)

    await ask(0)
    asked = [asyncio.create_task(ask(number)) for number in range(20)]
    await asyncio.sleep(0)
    asked[0].cancel()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[1:] == [str(number) for number in range(1, 20)]


async def test_a_helper_that_has_ended_between_two_chats_costs_neither(renderers: list[TemplateRenderer]) -> None:
    renderer = TemplateRenderer("fine", {}, 10)
    renderers.append(renderer)
    chat: dict[str, Any] = {"messages": [], "add_generation_prompt": True}
    assert await renderer.render(**chat) == "fine"
    assert renderer._helper is not None
    renderer._helper.kill()  # as the kernel does where memory is short
    await renderer._helper.wait()
    assert await renderer.render(**chat) == "fine"


async def test_the_helper_inherits_no_secrets(
    renderers: list[TemplateRenderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    renderer = TemplateRenderer("x", {}, 10)
    renderers.append(renderer)
    helper = await renderer._start()
    with open(f"/proc/{helper.pid}/environ", "rb") as environment:
        assert b"secret" not in environment.read()


def test_where_templates_are_found(tmp_path: Any) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert find_template(tmp_path, {}) is None
    assert find_template(tmp_path, {"chat_template": "S"}) == "S"
    assert find_template(tmp_path, {"chat_template": named}) == "D"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert find_template(tmp_path, {"chat_template": "S"}) == "J"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert find_template(tmp_path, {"chat_template": "S"}) == "F"
    assert find_template(tmp_path, {"chat_template": "S"}, chosen=True) == "S"
    assert find_template(tmp_path, {}, chosen=True) == "F"


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_a_template_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=f"{name}: not UTF-8"):
        find_template(tmp_path, {})


@pytest.mark.parametrize("value", [["S"], [{"name": "default"}], [{}], 5, {}])
def test_what_is_no_template_is_none(tmp_path: Path, value: Any) -> None:
    assert find_template(tmp_path, {"chat_template": value}) is None


def test_special_tokens_are_read_as_text_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None, "other": "x"}
    assert special_tokens(tmp_path, config) == {"bos_token": "<s>", "eos_token": "</s>"}
    older = {"bos_token": "<old>", "unk_token": {"content": "<unk>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    assert special_tokens(tmp_path, config) == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

"""Client libraries that ask about an image: all get the answer that the server gives to the plain request."""

from collections.abc import Iterator

import httpx
import pytest

from tests.clients.environments import run_script
from tests.gateway.seeing import data_url, png
from tests.processes import PATIENCE
from tests.servers import Server, serving
from tests.tiny_vision import write_vision

pytestmark = pytest.mark.slow

IMAGE, TEXT, TOKENS = data_url(png(64, 40)), "What is in the picture?", 8
JOB = {"image": IMAGE, "text": TEXT, "tokens": TOKENS}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_vision(tmp_path_factory.mktemp("model"), "qwen2_5_vl")
    limits = ("--dtype=float32", "--max-total-tokens=128", "--max-batch-size=4", "--max-batch-prefill-tokens=64")
    with serving(tmp_path_factory.mktemp("server"), f"--model-id={model}", *limits) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def answer(server: Server) -> tuple[str, int]:
    """The text, and the tokens of the prompt."""
    parts = [{"type": "image_url", "image_url": {"url": IMAGE}}, {"type": "text", "text": TEXT}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS, "temperature": 0}
    told = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE).json()
    return told["choices"][0]["message"]["content"], told["usage"]["prompt_tokens"]


def test_openais_and_langchains_clients_and_the_hubs(server: Server, answer: tuple[str, int]) -> None:
    told = run_script("modern", "images_modern", url=server.url, **JOB)
    text, tokens = answer
    assert (told.pop("prompt_tokens"), told.pop("responses_tokens")) == (tokens, tokens)
    assert told.pop("refused") == "messages[0].content[0].image_url"
    assert told == dict.fromkeys(told, text)


def test_tgis_client_and_the_hubs_text_generation(server: Server) -> None:
    prompt = f"user: ![]({IMAGE}) {TEXT}"
    asked = {"inputs": prompt, "parameters": {"max_new_tokens": TOKENS, "details": True}}
    plain = httpx.post(server.url + "/generate", json=asked, timeout=PATIENCE).json()
    told = run_script("classic", "images_classic", url=server.url, prompt=prompt, tokens=TOKENS)
    ids = [token["id"] for token in plain["details"]["tokens"]]
    assert told["ids"] == told["stream"] == ids
    assert told["text_generation"] == told["hub"] == plain["generated_text"]


def test_anthropics_client(server: Server, answer: tuple[str, int]) -> None:
    told = run_script("anthropic", "images_anthropic", url=server.url, **JOB)
    assert told["anthropic"] == answer[0]
    assert told["input_tokens"] == told["counted"] == answer[1]

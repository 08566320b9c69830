"""Models that see behind the whole server: a launcher, its helper process and an engine answer as transformers."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from gateway.text.tokenizer import Tokenizer
from tests.gateway.seeing import data_url
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import Server, serving
from tests.tiny_vision import write_vision
from tests.vision_references import Reference, mark, noise

pytestmark = pytest.mark.slow

TOKENS = 8
TOLERANCE = 1e-3  # of logits in float32
WIDE, TALL, GREY = noise(64, 40), noise(40, 90, 1), noise(61, 52, 2).convert("L")


def png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return data_url(file.getvalue())


@dataclass
class Seeing:
    """A server, and transformers' model of the same checkpoint."""

    server: Server
    reference: Reference

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.server.url + path, json=body, timeout=PATIENCE)

    def chat(self, *parts: str | Image.Image, **fields: Any) -> httpx.Response:
        """The answer to a user's texts and pictures."""
        content = [
            {"type": "text", "text": each}
            if isinstance(each, str)
            else {"type": "image_url", "image_url": {"url": png(each)}}
            for each in parts
        ]
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, "temperature": 0, **fields}
        return self.post("/v1/chat/completions", **body, return_token_ids=True, ignore_eos=True)

    def assert_greedy(self, prompt: list[int], answered: list[int], *parts: str | Image.Image) -> None:
        """Each token is the likeliest to transformers, or as likely."""
        pictures = [each.convert("RGB") for each in parts if not isinstance(each, str)]
        logits = self.reference.logits(prompt + answered, pictures, len(prompt))[len(prompt) - 1 : -1]
        logits = logits[:, : Tokenizer.load(self.reference.directory).end]  # others are no tokens, and never drawn
        chosen = logits[np.arange(len(answered)), answered]
        np.testing.assert_allclose(chosen, logits.max(-1), atol=TOLERANCE, rtol=0)


@pytest.fixture(scope="module", params=["llava_next", "qwen2_5_vl", "mllama"])
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    directory = write_vision(tmp_path_factory.mktemp("model"), request.param)
    options = ("--dtype=float32", "--max-total-tokens=256", "--enable-prefill-logprobs")
    with serving(tmp_path_factory.mktemp("server"), f"--model-id={directory}", *TINY_OPTIONS, *options) as server:
        server.wait_ready()
        yield Seeing(server, Reference(directory, request.param))


CHATS: list[tuple[str | Image.Image, ...]] = [
    (WIDE, "What is in the picture?"),
    ("What is in ", TALL, "?"),
    (GREY, "a dog"),
    (WIDE, " and ", TALL, "?"),
    (TALL, " and ", WIDE, "?"),
]


@pytest.mark.parametrize("number", range(len(CHATS)))
def test_a_chat_about_pictures_is_answered_as_transformers(seeing: Seeing, number: int) -> None:
    answer = seeing.chat(*CHATS[number])
    assert answer.status_code == 200, answer.text
    prompt = seeing.reference.chat(CHATS[number])
    assert answer.json()["prompt_token_ids"] == prompt
    seeing.assert_greedy(prompt, answer.json()["choices"][0]["token_ids"], *CHATS[number])
    assert answer.json()["usage"]["prompt_tokens"] == len(prompt)


def test_a_text_with_a_picture_is_generated_from_as_transformers(seeing: Seeing) -> None:
    """TGI's notation."""
    form = "user: What is in {0}? the river"
    prompt = seeing.reference.prompt(form.format(mark(seeing.reference.name)), [WIDE])
    asked = {"max_new_tokens": TOKENS, "details": True, "decoder_input_details": True}
    answer = seeing.post("/generate", inputs=form.format(f"![]({png(WIDE)})"), parameters=asked).json()
    assert [token["id"] for token in answer["details"]["prefill"]] == prompt
    ids = [token["id"] for token in answer["details"]["tokens"]]
    seeing.assert_greedy(prompt, ids, WIDE)
    tokens = seeing.post("/tokenize", inputs=form.format(f"![]({png(WIDE)})")).json()
    assert [token["id"] for token in tokens] == prompt


def test_pictures_of_neighbours_do_not_mix(seeing: Seeing) -> None:
    with ThreadPoolExecutor(len(CHATS)) as pool:
        answers = list(pool.map(lambda parts: seeing.chat(*parts), CHATS * 2))
    for parts, answer in zip(CHATS * 2, answers, strict=True):
        assert answer.status_code == 200, answer.text
        seeing.assert_greedy(seeing.reference.chat(parts), answer.json()["choices"][0]["token_ids"], *parts)


def test_a_picture_that_cannot_be_decoded_harms_its_request_alone(seeing: Seeing) -> None:
    file = io.BytesIO()
    WIDE.save(file, "PNG")
    broken = bytearray(file.getvalue())
    broken[60:200] = b"x" * 140
    content = [{"type": "image_url", "image_url": {"url": data_url(bytes(broken))}}]
    answer = seeing.post("/v1/chat/completions", messages=[{"role": "user", "content": content}])
    assert answer.status_code == 400 and "messages[0].content[0].image_url" in answer.json()["error"]["message"]
    assert seeing.chat(*CHATS[0]).status_code == 200


def test_info_and_metrics_tell_of_pictures(seeing: Seeing) -> None:
    info = httpx.get(seeing.server.url + "/info").json()
    assert info["max_images"] == 4
    metrics = httpx.get(seeing.server.url + "/metrics").text
    [encoded] = [line for line in metrics.splitlines() if line.startswith("textgen_images_encoded")]
    assert float(encoded.split()[-1]) > 0

"""A client of KoboldCpp, whose answers are those of `/v1`."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers

from tests.clients.environments import run_script
from tests.servers import Server, serving

pytestmark = pytest.mark.slow

KEY = "a-key"
TEXTS = ["the quick brown fox", "jumps"]
NEW, LONG = 8, 1900
OPTIONS = ("--max-batch-size=8", "--max-batch-prefill-tokens=64", "--served-model-name=org/tiny")


def completions(server: Server) -> list[str]:
    """What `/v1/completions` answers to each text, greedily."""
    headers = {"authorization": f"Bearer {KEY}"}
    body: dict[str, Any] = {"prompt": TEXTS, "max_tokens": NEW, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60)
    return [choice["text"] for choice in answer.json()["choices"]]


def test_koboldapi_gets_what_the_other_protocols_answer(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", f"--api-key={KEY}", *OPTIONS) as server:
        server.wait_ready()
        answer = run_script("kobold", "kobold_client", url=server.url, key=KEY, texts=TEXTS, new=NEW, long=LONG)
        assert answer["whole"] == answer["streamed"] == completions(server)
        assert server.gauges()['textgen_kv_pages{engine="0",state="used"}'] == 0
    ids = transformers.AutoTokenizer.from_pretrained(tiny_model)(TEXTS[0])["input_ids"]
    assert answer["counted"] == {"count": len(ids), "tokens": ids} and answer["tokenized"] == ids
    assert answer["detokenized"] == TEXTS[0]
    assert (answer["version"]["result"], answer["version"]["protected"]) == ("KoboldCpp", True)
    assert (answer["model"], answer["context"]) == ("koboldcpp/org/tiny", 2048)
    aborted = answer["aborted"]
    assert aborted["seen"] and aborted["text"].startswith(aborted["seen"])
    assert (aborted["another's check"], aborted["another's abort"], aborted["still runs"]) == ("", "false", True)
    assert (aborted["abort"], aborted["again"]) == ("true", "false")
    assert 0 < answer["performance"]["last_token_count"] < LONG
    assert answer["logprobs"].startswith("API request failed: 404")
    assert answer["wrong grammar"].startswith("API request failed: 400")
    assert answer["no key"].startswith("API request failed: 401")


def test_where_there_is_no_key_it_finds_the_models_template(tiny_model: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"--model-id={tiny_model}", *OPTIONS) as server:
        server.wait_ready()
        answer = run_script("kobold", "kobold_core", url=server.url)
    assert (answer["info"]["name"], answer["info"]["context_length"]) == ("koboldcpp/org/tiny", 2048)
    assert answer["text"]

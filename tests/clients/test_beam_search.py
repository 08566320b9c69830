"""Beam search as the `openai` SDK asks for it, from a launcher whose mock engine has known beams."""

from pathlib import Path

import pytest

from tests.clients.environments import run_script
from tests.engine_mock import continuation
from tests.gateway.toys import byte_level, write_model
from tests.processes import running_launcher

pytestmark = pytest.mark.slow

TOKENS = 9


def test_openais_sdk_asks_for_the_best_texts_by_extra_fields(tmp_path: Path) -> None:
    with running_launcher(write_model(tmp_path)) as server:
        server.wait_for(200)
        answer = run_script("modern", "openai_beams", url=server.url, prompt="hello", max_tokens=TOKENS)
    tokenizer = byte_level()
    whole = continuation(tokenizer.encode("hello").ids, TOKENS + 1)
    assert answer["texts"] == [tokenizer.decode(whole[k : k + TOKENS], skip_special_tokens=True) for k in range(2)]
    assert answer["ends"] == [[0, "length"], [1, "length"]]
    assert answer["logprobs"] == [[-0.25] * TOKENS, [-0.5] * TOKENS]
    assert answer["usage"] == [2 * TOKENS, 3 * TOKENS]
    assert len(set(answer["messages"])) == 3
    assert answer["refused"] == ["stream", "temperature", "stop"]

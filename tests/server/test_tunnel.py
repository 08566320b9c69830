"""`--ngrok` before a real engine: a tunnel that is refused at first, is lost later, and answers as the port does."""

from pathlib import Path

import httpx
import pytest

from tests.fake_ngrok import KEY, TOKEN, FakeNgrok
from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import arguments, serving

pytestmark = pytest.mark.slow

PROMPT = {"inputs": "The river", "parameters": {"max_new_tokens": 8}}


def test_a_tunnel_that_comes_late_and_goes_again_answers_as_the_port_does(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "ngrok").mkdir()
    ngrok = FakeNgrok(tmp_path / "ngrok")
    ngrok.fail(2)
    edge = ("--ngrok", "--ngrok-edge=edghts_2b7")
    with serving(tmp_path, f"--model-id={tiny_model}", *edge, *TINY_OPTIONS, env=ngrok.environment) as server:
        first = ngrok.wait_for("listen")["public"]
        expected = generated(server.url)
        assert generated(first) == expected
        assert httpx.post(first + "/generate", json=PROMPT, timeout=PATIENCE).status_code == 401
        ngrok.cut()
        assert generated(server.url) == expected, "the port is served whatever becomes of the tunnel"
        assert generated(ngrok.wait_for("listen", 2)["public"]) == expected
        engine = server.engine_pid()
        assert TOKEN not in "".join(arguments(engine)) + Path(f"/proc/{engine}/environ").read_text()
        server.stop()
    log = server.log.read_text()
    ready, refused, opened = (
        log.index(text) for text in (" ready: ", "cannot open the ngrok tunnel", "public address: that of edghts_2b7")
    )
    assert ready < refused < opened < log.index("lost the ngrok tunnel")
    assert log.count("cannot open the ngrok tunnel") == log.count("public address: ") == 2
    assert [name for name, _ in ngrok.calls] == [
        *("connect", "connect", "connect", "listen", "close listener", "close session"),
        *("connect", "listen", "close listener", "close session"),
    ]
    assert TOKEN not in log


def generated(url: str) -> str:
    """The model's greedy text, by the server or a tunnel at `url`."""
    answer = httpx.post(url + "/generate", json=PROMPT, headers=KEY | {"connection": "close"}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generated_text"])

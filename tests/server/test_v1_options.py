"""Options of `/v1` behind a whole server, as vLLM's users set them."""

from pathlib import Path

import httpx

from tests.processes import PATIENCE
from tests.server.conftest import TINY_OPTIONS
from tests.servers import serving

MANY = 50


def test_names_and_as_many_logprobs_as_the_server_is_started_for(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--served-model-name", "mine", "other", f"--max-logprobs={MANY}", "--max-total-tokens=64")
    with serving(tmp_path, f"--model-id={tiny_model}", *TINY_OPTIONS, *options) as server:
        server.wait_ready()
        for temperature in (0, 1):
            body = {"prompt": [5, 6], "max_tokens": 2, "temperature": temperature, "model": "other"}
            fields = {"logprobs": MANY, "prompt_logprobs": MANY, "return_tokens_as_token_ids": True}
            answer = httpx.post(f"{server.url}/v1/completions", json={**body, **fields}, timeout=PATIENCE).json()
            [choice] = answer["choices"]
            assert answer["model"] == "mine"
            listed = [*choice["logprobs"]["top_logprobs"], choice["prompt_logprobs"][1]]
            assert len(listed) == 3 and all(len(each) in (MANY, MANY + 1) for each in listed)
        beyond = httpx.post(f"{server.url}/v1/completions", json={**body, "logprobs": MANY + 1}, timeout=PATIENCE)
        assert (beyond.status_code, f"at most {MANY}" in beyond.text) == (400, True)

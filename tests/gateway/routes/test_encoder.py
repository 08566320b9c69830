"""A model with an encoder, whose text does not continue the prompt: what is different for its clients."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.text.model_text import ModelText
from tests.gateway.fixtures import serve
from tests.gateway.toys import sentencepiece, write_model


async def test_the_inference_api_answers_without_the_prompt_unless_asked() -> None:
    async with serve(decoder_start_token_id=0) as app:
        assert (await app.post("/", inputs="lo ")).json() == [{"generated_text": "hello world"}]
        asked = {"return_full_text": True}
        assert (await app.post("/", inputs="lo ", parameters=asked)).json() == [{"generated_text": "lo hello world"}]
        assert (await app.http.get("/info")).json()["model_pipeline_tag"] == "text2text-generation"


@pytest.mark.parametrize(("continues", "text"), [(True, " he he"), (False, "he he")])
def test_a_text_begins_without_the_space_that_would_follow_the_prompt(
    continues: bool, text: str, tmp_path: Path
) -> None:
    write_model(tmp_path)
    sentencepiece().save(str(tmp_path / "tokenizer.json"))
    with ThreadPoolExecutor(1) as executor:
        model = ModelText(tmp_path, 64, executor, continues=continues, payload_limit=1000)
    ids = model.tokenizer.encode("he he", add_special_tokens=False)
    detokenizer = model.detokenizer(ids, skip_special_tokens=True)
    assert "".join(map(detokenizer.push, ids)) == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt_logprobs": 1}, "prompt_logprobs"), ({"echo": True, "logprobs": 1}, "echo")],
)
async def test_logprobs_of_a_prompt_that_an_encoder_reads_are_refused(fields: dict[str, Any], param: str) -> None:
    async with serve(decoder_start_token_id=0) as app:
        answer = await app.post("/v1/completions", {"prompt": "lo", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert "encoder" in answer.json()["error"]["message"]
        assert (await app.post("/v1/completions", prompt="lo", echo=True)).json()["choices"][0]["text"] == (
            "lohello world"
        )

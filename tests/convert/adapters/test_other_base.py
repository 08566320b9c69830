"""An adapter that was trained on a model of another name is added, and a line says so."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert.adapters.adapter import CONFIG
from convert.source import adapter_finder


@pytest.mark.parametrize(
    ("base", "model_id", "said"),
    [
        ("org/other", "org/model", "was trained on 'org/other', and is added to 'org/model'"),
        ("Org/Model", "org/model", ""),
        ("/data/other", "org/model", ""),
        ("org/other", "/data/model", ""),
        ("", "org/model", ""),
    ],
)
def test_another_name_is_said_where_both_are_the_hub_s(
    base: str, model_id: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": base}
    (tmp_path / CONFIG).write_text(json.dumps(settings))
    tensors = {f"base_model.model.q.lora_{name}.weight": np.ones((4, 4), np.float32) for name in "AB"}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    assert adapter_finder(model_id, None)(str(tmp_path)).base == base
    line = capsys.readouterr().err
    assert said in line and bool(line) == bool(said)

"""An adapter that cannot be added while a model runs is refused by name, and one that can is known by what it adds."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from convert.adapters.adapter import CONFIG, Adapter, Delta, open_adapter
from convert.adapters.adapter_reader import AdapterReader
from convert.compose import adapter_reader
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.families import family_of
from tests.convert.adapters.made_adapter import WHERE, adapter_of, delta

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": 320, "num_hidden_layers": 2, "max_position_embeddings": 128, **SIZES}
EXPERTS = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}
LAYER = "model.layers.1."
Q, ONES = LAYER + "self_attn.q_proj", np.ones(64, np.float32)


def reader(adapter: Adapter, **changed: object) -> AdapterReader:
    """Of a Llama, or with other keys of its configuration, for which every name means `adapter`."""
    config = Config({**LLAMA, **changed}, "config.json")
    made = adapter_reader(config, family_of(config).spec(config), lambda _: adapter)
    assert made
    return made


def of(*deltas: Delta, **replaced: np.ndarray) -> Adapter:
    return Adapter(WHERE, "", None, deltas, replaced)


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (of(replace(delta(Q, 64, 64), magnitude=ONES)), rf"module '{Q}' has a magnitude \(use_dora\), .*--merge-adapt"),
        (of(replace(delta(Q, 64, 64), bias=ONES)), rf"module '{Q}' has a bias \(lora_bias\), which cannot be added wh"),
        (of(delta("lm_head", 320, 64)), "module 'lm_head' is 'lm_head.weight', no matrix of a layer"),
        (of(replace(delta("model.embed_tokens", 64, 320), embedding=True)), "is 'model.embed_tokens.weight', no matri"),
        (of(delta(Q, 64, 64), norm=ONES), r"has tensor 'norm' whole \(`bias` or `modules_to_save`\), which cannot be"),
        (of(norm=ONES), "has tensor 'norm' whole"),
        (of(delta(Q.replace("1", "7"), 64, 64)), "module 'model.layers.7.self_attn.q_proj' is not in the model"),
        (of(delta(LAYER + "input_layernorm", 64, 1)), "module 'model.layers.1.input_layernorm' is 'mo.*no matrix"),
        (
            of(delta(Q, 64, 63)),
            rf"adapter: the adapter's module '{Q}' changes \[out, in\] \[64, 63\], the model has \[",
        ),
        (of(delta(LAYER + "mlp.down_proj", 96, 64)), r"changes \[out, in\] \[96, 64\], the model has \[64, 96\]"),
        (of(delta(Q, 64, 64), delta(Q[6:], 64, 64)), rf"'{Q[6:]}' changes '{Q}.weight', as '{Q}' does"),
        (of(replace(delta(Q, 64, 64), scale=1e39)), "has numbers that are not finite once they are scaled by 1e.39"),
    ],
)
def test_what_cannot_be_added_is_refused_by_name(adapter: Adapter, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        reader(adapter).read("any")


def test_experts_are_refused_and_their_router_is_not() -> None:
    moe = LAYER + "block_sparse_moe."
    assert reader(of(delta(LAYER + "mlp.gate", 4, 64)), **EXPERTS).read("any").matrices.keys() == {"layers.1.router"}
    with pytest.raises(
        CheckpointError, match=r"experts.0.w1' is '.*', no matrix of a layer's own \(embedding, head, e"
    ):
        reader(of(delta(moe + "experts.0.w1", 96, 64)), **EXPERTS).read("any")
    assert not [name for name in reader(of(), **EXPERTS).targets if "experts" in name]


def test_what_is_refused_at_load_is_refused_here(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4}))
    factors = {"A": np.full((4, 64), np.nan, np.float32), "B": np.ones((64, 4), np.float32)}
    save_file(
        {f"base_model.model.{Q}.lora_{x}.weight": y for x, y in factors.items()}, tmp_path / "adapter_model.safetensors"
    )
    config = Config(dict(LLAMA), "config.json")
    made = adapter_reader(config, family_of(config).spec(config), lambda name: open_adapter(Path(name)))
    assert made
    with pytest.raises(CheckpointError, match="has numbers that are not finite"):
        made.read(str(tmp_path))


def test_a_digest_is_of_what_is_added() -> None:
    config = Config(dict(LLAMA), "config.json")
    spec = family_of(config).spec(config)
    names = ("layers.0.qkv", "layers.1.down")

    def digest(adapter: Adapter) -> bytes:
        return reader(adapter).read("any").digest

    one = adapter_of(spec, family_of(config), names)
    same = replace(one, directory=Path("elsewhere"), deltas=one.deltas[::-1], base="another")
    assert digest(one) == digest(same) and len(digest(one)) == 32
    folded = [replace(each, b=each.b * np.float32(each.scale), scale=1.0) for each in one.deltas]
    assert digest(replace(one, deltas=tuple(folded))) == digest(one)
    louder = (replace(one.deltas[0], scale=0.6), *one.deltas[1:])
    elsewhere = [replace(each, name=each.name.replace("layers.1", "layers.0")) for each in one.deltas]
    others = [adapter_of(spec, family_of(config), names, seed=1), adapter_of(spec, family_of(config), names[:1])]
    others += [replace(one, deltas=deltas) for deltas in (louder, tuple(elsewhere))]
    assert len({digest(one), *map(digest, others)}) == 5


def test_threads_read_side_by_side() -> None:
    config = Config(dict(LLAMA), "config.json")
    made = reader(adapter_of(family_of(config).spec(config), family_of(config), ("layers.0.qkv", "layers.1.gate_up")))
    with ThreadPoolExecutor(8) as pool:
        assert len({weights.digest for weights in pool.map(made.read, map(str, range(32)))}) == 1

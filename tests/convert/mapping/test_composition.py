"""Parameters composed of checkpoint tensors have the layout of `parameter_table`, in every slice."""

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.compose import compose
from convert.config.config import Config
from convert.errors import CheckpointError
from convert.formats.shards import open_tensors
from convert.mapping.composition import ComposedSource
from jaxengine.architecture.parameters import parameter_table
from tests.tiny import TINY


def open_source(directory: Path) -> ComposedSource:
    return compose(Config.load(directory / "config.json"), open_tensors(directory))


@pytest.mark.parametrize("name", TINY)
def test_every_parameter_has_the_tables_shape(name: str, tiny: Callable[[str], Path]) -> None:
    source = open_source(tiny(name))
    for parameter, described in parameter_table(source.spec).items():
        assert source.read(parameter, ()).shape == described.shape


def test_qkv_is_grouped_by_key_value_head(tiny: Callable[[str], Path]) -> None:
    """Key/value head j has the query heads that attend to it, then its key, then its value."""
    raw, source = load_file(tiny("llama_bias_hd") / "model.safetensors"), open_source(tiny("llama_bias_hd"))
    for kind, parameter in (("weight", "layers.1.qkv"), ("bias", "layers.1.qkv_bias")):
        q, k, v = (raw[f"model.layers.1.self_attn.{x}_proj.{kind}"] for x in "qkv")
        qkv = source.read(parameter, ())
        for j, g in itertools.product(range(2), range(2)):
            np.testing.assert_array_equal(qkv[j, g], q[24 * (2 * j + g) : 24 * (2 * j + g + 1)])
            np.testing.assert_array_equal(qkv[j, 2], k[24 * j : 24 * (j + 1)])
            np.testing.assert_array_equal(qkv[j, 3], v[24 * j : 24 * (j + 1)])


def test_out_down_and_gate_up_keep_their_elements(tiny: Callable[[str], Path]) -> None:
    raw, source = load_file(tiny("llama2_gqa") / "model.safetensors"), open_source(tiny("llama2_gqa"))
    layer = "model.layers.0."
    out = raw[layer + "self_attn.o_proj.weight"]
    np.testing.assert_array_equal(source.read("layers.0.out", ()).reshape(64, 64), out)
    np.testing.assert_array_equal(source.read("layers.0.out", ())[:, 1, 0], out[:, 32:48])  # query head 2
    np.testing.assert_array_equal(source.read("layers.0.down", ()), raw[layer + "mlp.down_proj.weight"])
    np.testing.assert_array_equal(source.read("layers.0.gate_up", ())[0], raw[layer + "mlp.gate_proj.weight"])
    np.testing.assert_array_equal(source.read("layers.0.gate_up", ())[1], raw[layer + "mlp.up_proj.weight"])


def test_slices_equal_the_whole_for_every_parameter(tiny: Callable[[str], Path]) -> None:
    """As sharded loading reads them: each axis cut everywhere, alone and together with others."""
    source = open_source(tiny("llama_bias_hd"))
    for name, parameter in parameter_table(source.spec).items():
        whole = source.read(name, ())
        for cut in itertools.product(
            *([slice(None), slice(0, s // 2 or 1), slice(s // 2, s)] for s in parameter.shape)
        ):
            np.testing.assert_array_equal(source.read(name, cut), whole[cut])


def test_threads_read_the_same(tiny: Callable[[str], Path]) -> None:
    source = open_source(tiny("llama2_gqa"))
    names = list(parameter_table(source.spec)) * 8
    with ThreadPoolExecutor(8) as pool:
        parallel = list(pool.map(lambda name: source.read(name, ()), names))
    for name, values in zip(names, parallel, strict=True):
        np.testing.assert_array_equal(values, source.read(name, ()))


@pytest.mark.parametrize("index", [slice(0, 4, 2), slice(3, 3), slice(5, 2)])
def test_strided_and_empty_slices_are_refused(index: slice, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(CheckpointError, match="contiguous"):
        open_source(tiny("llama")).read("embedding", (index,))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a_missing_tensor_is_named(name: str, copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    edit_tensors(directory, lambda tensors: {key: values for key, values in tensors.items() if key != name})
    with pytest.raises(CheckpointError, match=f"lacks tensor '{name}'"):
        open_source(directory)


def test_an_unexpected_tensor_is_named(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    extra = {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}
    edit_tensors(directory, lambda tensors: tensors | extra)
    with pytest.raises(CheckpointError, match=r"no place for tensor 'model\.layers\.0\.self_attn\.q_norm\.weight'"):
        open_source(directory)


def test_a_layer_more_than_configured_is_refused(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    edit_config(directory, num_hidden_layers=1)
    with pytest.raises(CheckpointError, match=r"no place for 9 tensors: 'model\.layers\.1\."):
        open_source(directory)


def test_buffers_of_older_libraries_are_ignored(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    edit_tensors(directory, lambda tensors: tensors | buffer)
    open_source(directory)


def test_a_misshapen_tensor_is_named_with_both_shapes(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    edit_config(directory, vocab_size=321)
    message = r"'model\.embed_tokens\.weight' has shape \[320, 64\], the configuration says \[321, 64\]"
    with pytest.raises(CheckpointError, match=message):
        open_source(directory)


def test_integer_weights_are_refused_by_type(copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("llama")
    name = "model.layers.0.mlp.up_proj.weight"
    edit_tensors(directory, lambda tensors: tensors | {name: tensors[name].astype(np.int8)})
    with pytest.raises(CheckpointError, match=f"'{name}' has type int8, supported are float32, bfloat16"):
        open_source(directory)


def edit_tensors(directory: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    path = directory / "model.safetensors"
    save_file(change(load_file(path)), path)


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

"""StarCoder 2: a Llama with LayerNorm, an MLP without gate and a window on all layers."""

from convert.config.config import Config
from convert.families.family import Family, activation
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec, with_window
from jaxengine.architecture.model import ModelSpec, Norm

STARCODER2_TENSORS = {
    **TENSORS,
    "layers.{i}.gate_up": (LAYER + "mlp.c_fc.weight",),
    "layers.{i}.down": (LAYER + "mlp.c_proj.weight",),
}


def _starcoder2(config: Config) -> ModelSpec:
    spec = llama_spec(
        config,
        norm=Norm("layer", config.number("norm_epsilon", 1e-5)),
        activation=activation(config, "gelu_pytorch_tanh"),
        gated=False,
        tied=True,
    )
    return with_window(spec, config)


STARCODER2 = Family(_starcoder2, STARCODER2_TENSORS, ignore=BUFFERS)

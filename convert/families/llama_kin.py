"""Models of Llama's shape with defaults of their own: Helium, Seed-OSS; and Arcee's, without a gate."""

from convert.config.config import Config
from convert.families.family import Family, activation
from convert.families.llama import BUFFERS, LAYER, TENSORS, llama_spec
from convert.mapping.recipes import Layout
from jaxengine.architecture.model import ModelSpec


def _helium(config: Config) -> ModelSpec:
    return llama_spec(config, theta=100000.0, head_dim=128, eps=1e-8, out_bias=False)


def _seed(config: Config) -> ModelSpec:
    qkv, out = config.flag("attention_bias", True), config.flag("attention_out_bias", False)
    return llama_spec(config, head_dim=128, qkv_bias=qkv, out_bias=out)


def _arcee(config: Config) -> ModelSpec:
    return llama_spec(config, eps=1e-5, activation=activation(config, "relu2"), gated=False)


HELIUM = Family(_helium, TENSORS, Layout(interleaved=True), ignore=BUFFERS)
SEED_OSS = Family(_seed, TENSORS, ignore=BUFFERS)
ARCEE = Family(_arcee, {**TENSORS, "layers.{i}.gate_up": (LAYER + "mlp.up_proj.weight",)}, ignore=BUFFERS)

"""A step of which only some tokens are read computes these as ever, and keeps as much of all tokens, whatever its last
layer is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from convert.source import open_model
from jaxengine.ops.batch import Wanted
from tests.families.forward import Forward
from tests.jaxengine.engines import prompt

pytestmark = pytest.mark.slow

IDS, READ = prompt(40), 39
# Whose last layers have latents, both mixers, other layers' keys, experts beside an MLP, states, and an MLP alone.
NAMES = ("deepseek_v3_plain", "falcon_h1", "gemma4_e2b", "gemma4_moe", "lfm2", "nemotron_h")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_and_what_is_kept_stay(name: str, zoo: Callable[[str], Path]) -> None:
    made = Forward(open_model(str(zoo(name))).source, slots=1)
    module = made.step.args
    step: dict[str, Any] = {}
    wanted = Wanted(jnp.array(True), jnp.array([READ, 0]), jnp.array([READ]))

    def both(ids: jax.Array, caches: Any, batches: Any) -> Any:
        decoder, _ = nnx.merge(*module)
        step["all"], step["some"] = decoder(ids, caches, batches), decoder(ids, caches, batches, None, wanted)
        return step["all"]

    made.step = both
    made.prefill(0, IDS, 0, len(IDS))
    (every, kept), (some, still_kept) = step["all"], step["some"]
    np.testing.assert_allclose(some[READ], every[READ], atol=1e-5)
    assert np.abs(some[1] - every[1]).max() > 1e-3  # it was left out
    for before, after in zip(kept, still_kept, strict=True):
        np.testing.assert_allclose(after, before, atol=1e-5)

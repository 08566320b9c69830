"""What is decided before the first weight is read."""

from collections.abc import Callable
from pathlib import Path

import jax

from convert.source import open_model
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import Setup


def test_no_number_of_devices_means_all_in_any_process(tiny: Callable[[str], Path]) -> None:
    setup = Setup.decide(open_model(str(tiny("llama2_gqa"))), EngineOptions(tensor_parallel=0))
    assert setup.mesh.size == jax.local_device_count()

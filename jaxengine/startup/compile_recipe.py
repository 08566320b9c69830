"""What another process needs to compile for an engine: all that decides shapes, and neither devices nor weights."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from jaxengine.architecture.weight_format import WeightFormat
from jaxengine.device import DeviceTraits
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.executable_store import ExecutableStore
from jaxengine.executor.shapes import Shapes
from jaxengine.executor.step_model import StepModel
from jaxengine.sharding import make_mesh
from jaxengine.weights.loading import abstract_drafter, abstract_parameters


@dataclass(frozen=True)
class CompileRecipe:
    """Pickled, sent, and followed there. Not for a model that is traced from PyTorch's."""

    shapes: Shapes
    device: DeviceTraits
    attention: str
    formats: Mapping[str, WeightFormat]
    tensor_parallel: int

    def store(self, compile_cache: Path, mesh: Mesh) -> ExecutableStore:
        """Keeps the executables of this recipe, beside the compile cache."""
        return ExecutableStore(compile_cache, repr(self), list(mesh.devices.flat))

    def jobs(self, compile_cache: Path) -> dict[Hashable, Callable[[], Any]]:
        """The jobs of an engine's compiler, on this process's devices. What they compile is kept, see `store`."""
        mesh = make_mesh(self.tensor_parallel)
        shapes = self.shapes
        parameters = abstract_parameters(shapes.spec, mesh, shapes.dtype, self.device, self.formats)
        if shapes.drafter:
            parameters |= abstract_drafter(shapes.drafter, mesh, shapes.dtype, self.device)
        model = StepModel.build(shapes, parameters, mesh, self.device, self.attention)
        return Compiler(shapes, model, mesh, self.device, self.store(compile_cache, mesh)).jobs()

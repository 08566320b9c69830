"""One array of a model: its shape, and how it is split, multiplied and quantised. No JAX here."""

import math
from dataclasses import dataclass

from jaxengine.architecture.weight_format import CODES, Component, WeightFormat


@dataclass(frozen=True)
class Parameter:
    """One array of the model. `axes` names each dimension for sharding; None is never sharded.

    A product contracts the last `inputs` axes of a matrix: `[out…, in…]`, Hugging Face's order and a device's. The
    first `stacked` axes number whole matrices. What is no float has a `dtype` of its own, whatever that of weights is.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    inputs: int = 0
    stacked: int = 0
    dtype: str | None = None

    def component(self, component: Component, format: WeightFormat) -> "Parameter":
        """One array of a quantised matrix. Values keep all axes; scales and zeros have groups in place of inputs. An
        order has the inputs alone, as one axis.
        """
        if component == "values":
            return self
        if component == "words":
            return Parameter((*self.shape[:-1], self.shape[-1] // CODES), self.axes)
        outputs = len(self.shape) - self.inputs
        if component == "order":
            return Parameter((math.prod(self.shape[outputs:]),), self.axes[outputs : outputs + 1])
        groups = () if format.group == 0 else (math.prod(self.shape[outputs:]) // format.group,)
        return Parameter(self.shape[:outputs] + groups, self.axes[: outputs + len(groups)])

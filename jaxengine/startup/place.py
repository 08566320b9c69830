"""Where an engine runs: its devices, what kind they are, and how much of their memory it may use.

A place is of this machine, or imaginary: plans are made for devices that are not here.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
from jax.sharding import Mesh

from jaxengine.device import DeviceTraits
from jaxengine.sharding import make_mesh


class DoesNotFit(ValueError):
    """The model and its limits need more memory than there is; the message has the numbers."""


@dataclass(frozen=True)
class Place:
    """The devices of `mesh`, which are alike. `told_bytes` is the memory of each that JAX may use, if it is no device
    that could be asked.
    """

    mesh: Mesh
    device: DeviceTraits
    told_bytes: int | None = None

    @classmethod
    def here(cls, devices: int, *, shared: bool = False) -> "Place":
        """`devices` of this machine, 0 for all; `shared`: and as many of each other machine of the group, in the order
        of their ranks. Raises ValueError where there are fewer.
        """
        count = devices or jax.local_device_count()
        if not shared:
            mesh = make_mesh(count)
            return cls(mesh, DeviceTraits.of(mesh.devices.flat[0]))
        of_each = [jax.local_devices(process_index=rank) for rank in range(jax.process_count())]
        if fewest := [rank for rank, found in enumerate(of_each) if len(found) < count]:
            rank = fewest[0]
            raise ValueError(f"machine {rank} has {len(of_each[rank])} devices, and {count} of each are asked for")
        chosen = [device for found in of_each for device in found[:count]]
        return cls(make_mesh(len(chosen), chosen), DeviceTraits.of(jax.local_devices()[0]))

    @cached_property
    def memory_bytes(self) -> int:
        """Of each device: the share XLA_CLIENT_MEM_FRACTION, three quarters by default.

        Raises:
            DoesNotFit: the device does not tell.
        """
        if self.told_bytes is not None:
            return self.told_bytes
        mine = next(each for each in self.mesh.devices.flat if each.process_index == jax.process_index())
        stats = mine.memory_stats()
        if not stats or "bytes_limit" not in stats:
            raise DoesNotFit(f"{self.device.kind} does not tell its memory size: set max_batch_total_tokens")
        return int(stats["bytes_limit"])

"""How much memory and time a picture may take, by its size."""

from dataclasses import dataclass

from gateway.images.helper_messages import Job


@dataclass(frozen=True)
class Limits:
    """What a picture may take, at least and for what it has: pixels, and numbers of its patches.

    Measured with Pillow 13 and transformers 5.24: 0.2 s and 20 bytes for a million pixels of WebP, which are most; 3 s
    and 13 bytes a number for the 57 million numbers of a picture of Idefics3.
    """

    wall_seconds: float = 60.0  # on a machine whose cores others use
    cpu_seconds: int = 2
    pixels_a_second: int = 2 << 20
    values_a_second: int = 8 << 20
    memory: int = 256 << 20  # bytes of address space beside those of this process
    pixel_memory: int = 32
    value_memory: int = 24

    def seconds_of(self, job: Job) -> int:
        """Of processor time."""
        pixels, values = job.width * job.height, job.rows * job.columns
        return self.cpu_seconds + pixels // self.pixels_a_second + values // self.values_a_second

    def memory_of(self, job: Job) -> int:
        """Bytes."""
        pixels, values = job.width * job.height, job.rows * job.columns
        return self.memory + self.pixel_memory * pixels + self.value_memory * values

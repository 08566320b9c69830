"""NVIDIA's GPUs, as plans know them: by name, and from data sheets.

Memory is what CUDA reports, which is less than what is sold: from XLA's descriptions of its targets
(`xla/backends/gpu/target_config/specs`) where it has one, as bandwidth is, and else the least that PyTorch's users saw.
Operations are those of dense products of bf16 that accumulate in f32; links are those of one direction.
"""

import re
from dataclasses import dataclass

from jaxengine.device import DeviceTraits

NVLINK_SECONDS, PCIE_SECONDS = 8e-6, 23e-6  # of an all-reduce of a few KB: a kernel over NVLink, NCCL's ring


@dataclass(frozen=True)
class Gpu:
    """
    cores: streaming multiprocessors; 0 if unknown.
    memory: bytes.
    bandwidth: of the memory, in bytes/s; 0 if unknown, as rate and link are then.
    rate: operations/s.
    link: to other GPUs of the machine, in bytes/s.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    memory: int
    bandwidth: float = 0.0
    rate: float = 0.0
    link: float = 0.0
    nvlink: bool = False

    @property
    def traits(self) -> DeviceTraits:
        return DeviceTraits("gpu", self.name, self.capability)

    @property
    def reduce_seconds(self) -> float:
        """The least that adding up a small array over several GPUs takes."""
        return NVLINK_SECONDS if self.nvlink else PCIE_SECONDS


PCIE_4, PCIE_5 = 32e9, 64e9
GIB = 1 << 30

GPUS = {
    "a10": Gpu("NVIDIA A10", (8, 6), 72, int(22.0 * GIB), 600e9, 125e12, PCIE_4),
    "a10g": Gpu("NVIDIA A10G", (8, 6), 80, int(22.0 * GIB), 600e9, 70e12, PCIE_4),
    "a100-40gb": Gpu("NVIDIA A100-SXM4-40GB", (8, 0), 108, 42_298_834_944, 1555.2e9, 312e12, 300e9, nvlink=True),
    "a100-80gb": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85_100_068_864, 2039.04e9, 312e12, 300e9, nvlink=True),
    "a6000": Gpu("NVIDIA RTX A6000", (8, 6), 84, 51_041_271_808, 768.096e9, 154.8e12, PCIE_4),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 191_514_411_008, 7672.32e9, 2250e12, 900e9, nvlink=True),
    "b300": Gpu("NVIDIA B300", (10, 3), 158, 297_021_865_984, 7936e9, 2250e12, 900e9, nvlink=True),
    "gb200": Gpu("NVIDIA GB200", (10, 0), 152, 197_897_748_480, 7928.064e9, 2500e12, 900e9, nvlink=True),
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 84_942_979_072, 3352.32e9, 989e12, 450e9, nvlink=True),
    "h100-pcie": Gpu("NVIDIA H100 PCIe", (9, 0), 114, 84_942_979_072, 2039.04e9, 756e12, PCIE_5),
    "h200": Gpu("NVIDIA H200", (9, 0), 132, 151_397_597_184, 4800e9, 989e12, 450e9, nvlink=True),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, int(21.96 * GIB), 300e9, 121e12, PCIE_4),
    "l40s": Gpu("NVIDIA L40S", (8, 9), 142, int(44.4 * GIB), 864e9, 362e12, PCIE_4),
    "rtx3090": Gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, int(23.68 * GIB), 936e9, 71e12, PCIE_4),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, int(23.52 * GIB), 1008e9, 165.2e12, PCIE_4),
    "rtx5090": Gpu("NVIDIA GeForce RTX 5090", (12, 0), 170, int(31.36 * GIB), 1792e9, 209.5e12, PCIE_5),
    "rtx6000-ada": Gpu("NVIDIA RTX 6000 Ada Generation", (8, 9), 142, int(47.37 * GIB), 960e9, 364e12, PCIE_4),
    "rtx6000-pro": Gpu("NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, int(94.97 * GIB), 1792e9, 503.8e12, PCIE_5),
}
ALIASES = {
    "a100": "a100-80gb",
    "h100-80gb": "h100",
    "h100-sxm": "h100",
    "RTX PRO 6000 Blackwell Server Edition": "rtx6000-pro",
    "RTX PRO 6000 Blackwell Workstation Edition": "rtx6000-pro",
}


def find(name: str) -> Gpu | None:
    """The GPU that a user or a driver calls `name`; None if it is not known."""
    return BY_NAME.get(_plain(name))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("geforce")


BY_NAME = {
    **{_plain(name): gpu for key, gpu in GPUS.items() for name in (key, gpu.name)},
    **{_plain(alias): GPUS[key] for alias, key in ALIASES.items()},
}

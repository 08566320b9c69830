"""The options of a model that is split over the devices of several machines. The launcher and the engine have them.

Each machine runs the same command but for `--node-rank`. The names are vLLM's and SGLang's, and `--master-addr` and
`--master-port` also TGI's.
"""

# ruff: noqa: RUF009 — `option` is `dataclasses.field`

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxengine.options import values
from jaxengine.options.option import option

GROUP_ENDED = os.EX_TEMPFAIL  # exit code of an engine that ends because that of another machine did


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """Who belongs to the group. With one machine there is none.

    Variables of these names are set for other programs: by MPI, Slurm, PyTorch's and Lightning's launchers. Those of
    Kubernetes' LeaderWorkerSet say which pod of a group this is.
    """

    title: ClassVar[str] = "Several machines"

    nnodes: int = option(
        1,
        values.whole(1, 64),
        "machines that one model is split over, all devices of each or --num-shard of each; the same command runs on "
        "each, and only that of --node-rank 0 serves HTTP",
        after="num_shard",
        variable="LWS_GROUP_SIZE",
    )
    node_rank: int = option(
        0,
        values.whole(0, 63),
        "number of this machine, from 0; the one with 0 leads",
        after="nnodes",
        variable="LWS_WORKER_INDEX",
    )
    master_addr: str | None = option(
        None,
        values.text,
        "address of machine 0, by which the others reach it; it listens there",
        after="node_rank",
        variable="LWS_LEADER_ADDRESS",
    )
    master_port: int = option(
        29500,
        values.whole(0, 65535),
        "port of machine 0 on which the others join it",
        after="master_addr",
        in_environment=False,
    )
    group_key_file: Path | None = option(
        None,
        values.path,
        "file with a secret that all machines share; without one, whoever reaches the port of machine 0 can join",
        after="master_port",
    )

    @property
    def follows(self) -> bool:
        """Whether this machine repeats what another one does."""
        return self.nnodes > 1 and self.node_rank > 0

    def check_group(self) -> None:
        """Raises ValueError where the options contradict each other."""
        if self.nnodes == 1:
            return
        if self.master_port == 0:
            raise ValueError("--master-port must be one that the others know, got 0")
        if self.node_rank >= self.nnodes:
            raise ValueError(f"--node-rank must be less than --nnodes {self.nnodes}, got {self.node_rank}")
        if self.master_addr is None:
            raise ValueError(f"--nnodes {self.nnodes} needs --master-addr, the address of the machine of --node-rank 0")

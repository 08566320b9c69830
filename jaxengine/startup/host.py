"""The memory of the machine that an engine without a device of its own runs on."""

import os
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup/memory.max")


def host_memory() -> int:
    """Bytes of this machine, or of the container that this process runs in (cgroup v2)."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(CONTAINER.read_text()))
    except (OSError, ValueError):  # none, or without a limit: "max"
        return whole

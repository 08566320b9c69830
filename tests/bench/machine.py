"""What a table was measured on."""

import platform
import subprocess


def described() -> str:
    """Processors, Python and the commit."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{len(models)} x {models[0]}, Python {platform.python_version()}, commit {_commit()}"


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"

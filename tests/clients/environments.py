"""Python environments for client libraries, whose requirements contradict each other's and ours.

Each is built once from a file of exact versions, in the user's cache, and found again by that file's contents. What a
client runs is a script in `scripts/` that takes a job as JSON and answers with JSON: the tests judge, not the scripts.
"""

import hashlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from convert.cache import cache_root, locked

HERE = Path(__file__).parent
INSTALL_SECONDS = 600
SCRIPT_SECONDS = 600  # on a busy machine
# Nothing of the developer's: no keys, no proxies, no tracing.
ENVIRONMENT = {"NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "ignore", "HF_HUB_DISABLE_TELEMETRY": "1"}


def interpreter(name: str) -> Path:
    """The Python of the environment that `name`.txt describes, installed if it is not there yet."""
    pins = (HERE / f"{name}.txt").read_text()
    key = hashlib.sha256(f"{sys.version_info[:2]} {pins}".encode()).hexdigest()[:12]
    directory = cache_root() / "test-clients" / f"{name}-{key}"
    python, complete = directory / "bin" / "python", directory / "complete"
    with locked(directory):
        if not complete.exists():
            venv.create(directory, with_pip=False, clear=True)  # ours installs: its own would take 4 s
            pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
            install = [*pip, "-r", HERE / f"{name}.txt"]
            done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            assert done.returncode == 0, done.stderr
            complete.write_text(pins)
    return python


def run_script(environment: str, script: str, **job: Any) -> dict[str, Any]:
    """What `script` answers to `job` in `environment`. Fails with its traceback."""
    command = [interpreter(environment), HERE / "scripts" / f"{script}.py", json.dumps(job)]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **ENVIRONMENT}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SCRIPT_SECONDS)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer

"""The application of Ray Serve in front of the mock engine: `import_path: tests.mock_ray_serve:build`.

`args` may hold `mock`, the mock engine's own command line, beside what `gateway.ray_serve:build` takes.
"""

import functools
from typing import Any

from ray import serve

from gateway.ray_serve.deployment import application
from tests.mock_launcher import mock_command


def build(arguments: dict[str, Any]) -> serve.Application:
    its = arguments.get("mock", [])
    given = {name: value for name, value in arguments.items() if name != "mock"}
    return application(given, functools.partial(mock_command, its))

"""Which part may know which: imports point one way, and what must start fast does not import JAX.

Read from the source, so a lazy import inside a function counts as much as one at the top.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("gateway", "jaxengine", "convert")
JOINTS = {Path("jaxengine/server.py"), Path("jaxengine/llm.py")}  # the only files that see engine and converter
ACCELERATED = {"jax", "jaxlib", "flax"}
GENERATED = ("_pb2.py", "_pb2_grpc.py")
WITHOUT_JAX = [
    "jaxengine.scheduler.scheduler",
    "jaxengine.cache.page_tables",
    "jaxengine.request.plan",
    "jaxengine.scheduler.fair_queue",
    "jaxengine.cache.page_pool",
    "jaxengine.request.sequence",
    "jaxengine.request.sampling_params",
    "jaxengine.startup.options",
    "jaxengine.request.interface",
    "jaxengine.request.checks",
    "jaxengine.engine.fault_isolation",
    "jaxengine.service.codec",
    "jaxengine.service.request_trace",
    "jaxengine.service.service",
    "jaxengine.service.step_loop",
    "jaxengine.service.process",
    "jaxengine.server",
    "jaxengine.spec.model",
    "jaxengine.spec.layer_groups",
    "jaxengine.spec.parameters",
    "jaxengine.rpc.transport",
    "jaxengine.rpc.engine_pb2_grpc",
    "convert.source",
    "convert.cli",
    "gateway.launcher",
    "gateway.processes.server",
    "gateway.processes.http_worker",
    "gateway.app",
]


def files(*parts: str) -> list[Path]:
    return sorted(path.relative_to(ROOT) for part in parts for path in (ROOT / part).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Every module `path` imports, anywhere in it. `from a import b` names both a and a.b: b may be a module."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def wrong(paths: list[Path], *forbidden: str, but: tuple[str, ...] = ()) -> list[str]:
    found = [(path, name) for path in paths for name in imports(path)]
    return [f"{path} imports {name}" for path, name in found if within(name, *forbidden) and not within(name, *but)]


def test_the_parts_are_where_this_test_looks() -> None:
    assert all(len(files(part)) > 10 for part in PARTS)
    assert "jaxengine.rpc.transport" in set(imports(Path("jaxengine/server.py")))


def test_the_gateway_knows_the_engine_by_its_protocol_only() -> None:
    assert not wrong(files("gateway"), "jaxengine", *ACCELERATED, "torch", but=("jaxengine.rpc",))


def test_the_gateway_does_not_convert() -> None:
    assert not wrong(files("gateway"), "convert")


def test_nothing_imports_the_gateway() -> None:
    assert not wrong(files("jaxengine", "convert"), "gateway")


def test_converters_know_of_the_engine_what_a_model_is() -> None:
    found = wrong(files("convert"), "jaxengine", but=("jaxengine.spec.model", "jaxengine.spec.parameters"))
    assert found == ["convert/cli.py imports jaxengine.server.main"]  # the `serve` command hands over to it


def test_converters_do_not_compute() -> None:
    found = wrong(files("convert"), *ACCELERATED, "torch")
    files_of = {each.split()[0] for each in found}  # best effort: a module without weights is asked for its shapes
    assert files_of == {"convert/hf/conversion.py", "convert/hf/traced.py", "convert/hf/probe.py"}


def test_engine_and_converter_meet_in_two_files() -> None:
    assert not wrong([path for path in files("jaxengine") if path not in JOINTS], "convert")


def test_the_protocol_stands_alone() -> None:
    assert not wrong(files("jaxengine/rpc"), "jaxengine", but=("jaxengine.rpc",))


def test_no_private_module_of_jax_is_imported() -> None:
    assert not wrong(files(*PARTS), "jax._src", "jaxlib.xla_extension")


def test_tests_stay_out_of_the_product() -> None:
    assert not wrong(files(*PARTS), "tests", "pytest", "hypothesis")


def test_nothing_runs_what_it_reads() -> None:
    """No pickle, no eval, no exec: a checkpoint or a request is data."""
    paths = [path for path in files(*PARTS) if not path.name.endswith(GENERATED)]
    assert not wrong(paths, "pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal")
    calls = [
        f"{path}:{node.lineno} calls {node.func.id}"
        for path in paths
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
    ]
    assert not calls


BLOCKED = """
import sys
for name in {blocked}:
    sys.modules[name] = None  # any import of it raises
import {module}
"""


@pytest.mark.parametrize("module", WITHOUT_JAX)
def test_it_imports_where_there_is_no_jax(module: str) -> None:
    code = BLOCKED.format(blocked=sorted(ACCELERATED), module=module)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_blocking_jax_blocks_it() -> None:
    code = BLOCKED.format(blocked=sorted(ACCELERATED), module="jaxengine.engine.engine")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "import of jax" in done.stderr

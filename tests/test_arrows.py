"""Which part may know which: imports point one way, and what must start fast does not import JAX.

Read from the source, so a lazy import inside a function counts as much as one at the top.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("gateway", "jaxengine", "convert")
JOINTS = {
    Path(f"jaxengine/{name}.py") for name in ("server", "llm/llm", "quantize", "export", "plan")
}  # see engine and converter
ACCELERATED = {"jax", "jaxlib", "flax"}
GENERATED = ("_pb2.py", "_pb2_grpc.py")

# Of each part, its floors from the roof down: a folder or file imports from lower floors only.
FLOORS = {
    "gateway": (
        {"ray_serve"},
        {"launcher", "benchmark"},
        {"processes"},
        {"app", "admin", "grpc"},
        {"routes"},
        {"request"},
        {"parsing"},
        {"grammar", "samplers", "images"},
        {"http", "text", "engine", "observability"},
        {"errors"},
        {"config"},
        {"child_process", "web"},
    ),
    "jaxengine": (
        {"server", "llm", "quantize", "export", "plan"},
        {"capacity"},
        {"startup"},
        {"engine", "service", "gptq", "group"},
        {"executor", "scheduler", "weights"},
        {"step", "cache", "speculation"},
        {"model", "request"},
        {"ops", "grammar"},
        {"sharding"},
        {"architecture", "options", "device"},
        {"rpc", "telemetry", "lifetime"},
    ),
    "convert": (
        {"cli"},
        {"arguments"},
        {"hub_checkpoint"},
        {"original", "outline"},
        {"source"},
        {"origin", "llama_cpp"},
        {"checkpoint", "compose", "drafters"},
        {"families", "tokenizer", "hf", "quantized", "adapters"},
        {"config", "mapping", "cache"},
        {"formats", "progress"},
        {"errors", "announce"},
    ),
}
# What runs, or is tested, where there is no device: whole folders, and files of others.
WITHOUT_JAX = (
    *("gateway", "convert"),
    *(
        "jaxengine/options",
        "jaxengine/rpc",
        "jaxengine/telemetry",
        "jaxengine/grammar",
        "jaxengine/architecture",
        "jaxengine/request",
        "jaxengine/cache",
    ),
    *("jaxengine/scheduler", "jaxengine/service", "jaxengine/engine/fault_isolation.py"),
    *("jaxengine/startup/defaults.py", "jaxengine/device.py", "jaxengine/server.py"),
)


def files(*parts: str) -> list[Path]:
    """Every Python file of folders, or files, `parts`."""
    found = (
        path for part in parts for path in ([ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*.py"))
    )
    return sorted(path.relative_to(ROOT) for path in found)


def module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def inhabitant(name: str) -> str:
    """The folder or file right below a part in which module `name` lies; "" for the part itself."""
    return [*name.split("."), ""][1]


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


@pytest.mark.parametrize("part", PARTS)
def test_imports_go_down(part: str) -> None:
    floor = {name: number for number, names in enumerate(FLOORS[part]) for name in names}
    assert {inhabitant(module(path)) for path in files(part)} - {""} == floor.keys()
    up = [
        f"{path} imports {name}"
        for path in files(part)
        for name in imports(path)
        if within(name, part) and (own := inhabitant(module(path))) and (other := inhabitant(name)) in floor
        if own != other and floor[other] <= floor[own]
    ]
    assert not up


def test_ray_is_known_where_the_server_is_deployed_on_it_and_nowhere_else() -> None:
    """It is an extra."""
    deployed = Path("gateway/ray_serve/deployment.py")
    assert wrong([deployed], "ray") and not wrong([path for path in files(*PARTS) if path != deployed], "ray")


def test_text_knows_no_web_server() -> None:
    """`LLM` uses the same code."""
    assert not wrong(files("gateway/text"), "fastapi", "starlette", "uvicorn")


def test_the_gateway_knows_the_engine_by_its_protocol_its_options_and_the_shape_of_a_picture() -> None:
    known = ("jaxengine.rpc", "jaxengine.telemetry", "jaxengine.options", "jaxengine.__version__")
    known = (*known, "jaxengine.architecture.picture")
    assert not wrong(files("gateway"), "jaxengine", *ACCELERATED, "torch", but=known)


def test_no_process_imports_the_program_of_its_child() -> None:
    """What both need of each other is in `gateway.processes.worker_spec`."""
    assert not wrong(files("gateway"), "gateway.processes.http_worker")


def test_the_gateway_does_not_convert() -> None:
    assert not wrong(files("gateway"), "convert")


def test_nothing_imports_the_gateway_but_llm_and_of_it_only_the_code_of_texts_and_pictures() -> None:
    llm = files("jaxengine/llm")
    assert not wrong([path for path in files("jaxengine", "convert") if path not in llm], "gateway")
    assert not wrong(llm, "gateway", but=("gateway.text", "gateway.images"))


def test_converters_know_of_the_engine_what_a_model_is() -> None:
    found = wrong(files("convert"), "jaxengine", but=("jaxengine.architecture",))
    entries = {"server.main", "quantize.quantize", "quantize.settings_of", "export.export_program", "plan.main"}
    handed_over = {f"convert/cli.py imports jaxengine.{entry}" for entry in entries}
    shared = {"option.UsageError", "parser.Parser", "suggestion.suggestion"}  # all commands speak alike
    words = {f"convert/arguments.py imports jaxengine.options.{each}" for each in shared}
    spoken = {"options.option.UsageError", "telemetry.standard_streams"}  # likewise
    words |= {f"convert/cli.py imports jaxengine.{each}" for each in spoken}
    assert set(found) == handed_over | words


def test_converters_do_not_compute() -> None:
    found = wrong(files("convert"), *ACCELERATED, "torch")
    files_of = {each.split()[0] for each in found}  # best effort: a module without weights is asked for its shapes
    assert files_of == {"convert/hf/conversion.py", "convert/hf/traced_source.py", "convert/hf/probe.py"}


def test_engine_and_converter_meet_in_five_files() -> None:
    assert not wrong([path for path in files("jaxengine") if path not in JOINTS], "convert")


def test_the_protocol_stands_alone() -> None:
    both = ("jaxengine.rpc", "jaxengine.telemetry")
    assert not wrong(files("jaxengine/rpc", "jaxengine/telemetry"), "jaxengine", but=both)


def test_no_private_module_of_jax_is_imported() -> None:
    assert not wrong(files(*PARTS), "jax._src", "jaxlib.xla_extension")


def test_tests_stay_out_of_the_product() -> None:
    assert not wrong(files(*PARTS), "tests", "pytest", "hypothesis")


def test_nothing_runs_what_it_reads() -> None:
    """No pickle, no eval, no exec: a checkpoint or a request is data. Executables are run, whatever their form."""
    paths = [path for path in files(*PARTS) if not path.name.endswith(GENERATED)]
    unpickling = wrong(paths, "pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal")
    assert unpickling == ["jaxengine/executor/executable_store.py imports pickle"]
    calls = [
        f"{path}:{node.lineno} calls {node.func.id}"
        for path in paths
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
    ]
    assert not calls


BLOCKED = """
import importlib, json, sys
for name in {blocked}:
    sys.modules[name] = None  # any import of it raises
failed = {{}}
for name in {modules}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def test_what_needs_no_device_imports_where_there_is_no_jax() -> None:
    """In one interpreter, which also shows that a module that needs JAX would be found."""
    modules = [module(path) for part in WITHOUT_JAX for path in files(part)]
    code = BLOCKED.format(blocked=sorted(ACCELERATED), modules=[*modules, "jaxengine.engine.engine"])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    failed = json.loads(done.stdout)
    assert "import of jax" in failed.pop("jaxengine.engine.engine")
    assert not failed

"""A later start finds its executables without tracing; anything that could change them makes it compile again."""

import os
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from convert.cache import cache_root
from convert.source import open_model
from jaxengine import server
from jaxengine.executor import executable_store
from jaxengine.executor.compile_cache import COMPILES, compile_cache_in
from jaxengine.executor.compiler import Compiler
from jaxengine.executor.executable_store import ExecutableStore
from jaxengine.options.command_line import parse
from jaxengine.options.table import EngineOptions
from jaxengine.startup.build import load_engine
from tests.jaxengine.engines import ask, serve
from tests.tiny_adapter import write_adapter

OPTIONS = {"max_batch_size": 2, "max_batch_prefill_tokens": 32}
ONE = ("backbone", 1)  # an executable's name


def store(directory: Path, recipe: str = "recipe") -> ExecutableStore:
    return ExecutableStore(directory, recipe, jax.devices()[:1])


@pytest.fixture(autouse=True)
def empty(empty_compile_cache: Path) -> None:
    """What JAX's cache returns is not to be saved."""


def compiled() -> Any:
    donating = jax.jit(lambda state, x: {"sum": state["sum"] + x}, donate_argnums=0)
    array = jax.ShapeDtypeStruct((3,), "float32")
    return donating.lower({"sum": array}, array).compile()


def double(x: jax.Array) -> jax.Array:
    return 2 * x


def saved(directory: Path) -> ExecutableStore:
    made = store(directory)
    made.save(ONE, compiled())
    return made


def test_what_was_saved_is_loaded_and_computes_the_same(tmp_path: Path) -> None:
    saved(tmp_path)
    loaded = store(tmp_path).load(ONE)
    assert loaded is not None
    state = {"sum": jnp.ones(3)}
    assert loaded(state, jnp.arange(3.0))["sum"].tolist() == [1, 2, 3]
    assert state["sum"].is_deleted(), "the donation was lost"


@pytest.mark.parametrize("change", ["name", "recipe", "source", "flags", "machine"])
def test_nothing_is_loaded_where_something_else_decides_the_program(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    if change == "source":
        monkeypatch.setattr(executable_store, "code_digest", lambda: "other")
    if change == "flags":
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    if change == "machine":
        monkeypatch.setattr(executable_store, "_machine", lambda _: ("other",))
    name = ("backbone", 2) if change == "name" else ONE
    assert store(tmp_path, "other" if change == "recipe" else "recipe").load(name) is None


def test_every_source_file_of_the_engine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part").mkdir()
    file = tmp_path / "part" / "code.py"
    monkeypatch.setattr(executable_store.jaxengine, "__path__", [str(tmp_path)])
    digests = set()
    for text in ("a = 1", "a = 2"):
        file.write_text(text)
        digests.add(executable_store.code_digest.__wrapped__())
    assert len(digests) == 2


def test_source_that_changes_after_it_was_imported_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the programs of the old source would be kept as those of the new one."""
    imported = runpy.run_path(executable_store.__file__)
    before = executable_store.code_digest.__wrapped__()
    monkeypatch.setattr(executable_store.jaxengine, "__path__", [str(tmp_path)])
    assert imported["code_digest"]() == before != executable_store.code_digest.__wrapped__()


@pytest.mark.parametrize("content", [b"", b"no executable", None])
def test_a_damaged_file_is_removed_and_reported(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path)
    [file] = (tmp_path / "executables").iterdir()
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    assert store(tmp_path).load(ONE) is None
    assert "compiled again" in caplog.text and not [*file.parent.iterdir()]


def test_what_was_kept_can_be_forgotten(tmp_path: Path) -> None:
    made = saved(tmp_path)
    executable_store.forget_executables(tmp_path)
    executable_store.forget_executables(tmp_path)
    assert made.load(ONE) is None


@pytest.mark.parametrize("where", ["jaxengine.startup.build.load_engine", "jaxengine.engine.rehearsal.rehearse"])
def test_a_start_that_fails_forgets_what_may_have_failed(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would fail for ever."""

    def fail(*_: object, **__: object) -> None:
        raise jax.errors.JaxRuntimeError("Function not found")

    for name in ("XLA_CLIENT_MEM_FRACTION", *server.SECRETS):  # which loading sets, and drops
        monkeypatch.setitem(os.environ, name, "")
    monkeypatch.setattr("convert.source.open_model", lambda *_, **__: None)
    monkeypatch.setattr("jaxengine.executor.compile_cache.enable_compile_cache", lambda _: None)
    monkeypatch.setattr("jaxengine.startup.build.load_engine", lambda *_, **__: None)
    monkeypatch.setattr(where, fail)
    made = saved(compile_cache_in(cache_root(tmp_path)))
    with pytest.raises(jax.errors.JaxRuntimeError):
        server.load(parse(["--uds-path=/s/engine.sock", f"--cache-dir={tmp_path}"]), lambda _: None)
    assert made.load(ONE) is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # no directory
    assert saved(tmp_path / "file").load(ONE) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"quantize": "int8"}, {"enable_lora": True, "max_loras": 2, "max_batch_size": 1}]
)
def test_a_later_start_traces_nothing_and_answers_the_same(
    tiny: Callable[[str], Path],
    empty_compile_cache: Path,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, asked = open_model(str(tiny("llama2_gqa"))), EngineOptions(**{**OPTIONS, **options})
    adapter = write_adapter(tmp_path, tiny("llama2_gqa")) / "adapter" if asked.enable_lora else None

    def start() -> Sequence[int]:
        engine = load_engine(model, asked, compile_cache=empty_compile_cache)
        engine.finish_compiling()
        if asked.enable_lora:
            engine.load_adapter("a", str(adapter))
        asks = [ask(1, [5, 6, 7], max_tokens=12), *[ask(2, [5, 6, 7], adapter="a")] * asked.enable_lora]
        answers = serve(engine, asks)
        answer = [token for each in answers.values() for token in each.ids]
        assert engine.stats().compiles_after_warmup == 0
        engine.close()
        return answer

    jax.clear_caches()  # this process may have some of the executables
    first = start()
    monkeypatch.setattr(Compiler, "_lower", lambda *_: pytest.fail("a step function was traced"))
    assert start() == first


@pytest.mark.parametrize("clear", [True, False], ids=["on disk", "in memory"])
def test_an_executable_out_of_jax_s_caches_is_not_saved(tmp_path: Path, empty_compile_cache: Path, clear: bool) -> None:
    """On a CPU it might lack its functions."""
    compiler: Any = object.__new__(Compiler)
    compiler.compile = lambda lowered: lowered.compile()
    kept = []
    for start in ("first", "later"):
        compiler.store = store(tmp_path / start)
        with COMPILES.expected():
            compiler._build(ONE, lambda: jax.jit(double).lower(jax.ShapeDtypeStruct((3,), "float32")))
        kept.append(compiler.store.load(ONE) is not None)
        if clear:
            jax.clear_caches()
    jax.clear_caches()
    assert kept == [True, False]

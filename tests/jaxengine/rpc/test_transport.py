"""The wire between gateway and engine: who may open it, and what keeps others out."""

import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from jaxengine.rpc import engine_pb2 as pb
from jaxengine.rpc import transport
from jaxengine.rpc.engine_pb2_grpc import EngineStub
from tests.processes import PATIENCE, ROOT, Engine, running_engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> "AsyncIterator[Engine]":
    with running_engine(tmp_path_factory.mktemp("engine")) as engine:
        while not engine.path.exists():
            assert engine.process.poll() is None
        yield engine


async def describe(path: Path, metadata: tuple[tuple[str, str], ...]) -> pb.Description:
    async with grpc.aio.insecure_channel(transport.address(path)) as channel:
        call = EngineStub(channel).Describe(
            pb.DescribeRequest(), metadata=metadata, wait_for_ready=True, timeout=PATIENCE
        )
        return await call


async def test_the_boot_token_opens_the_engine(engine: Engine) -> None:
    description = await describe(engine.path, transport.credentials(engine.token))
    assert description.state in (pb.STARTING, pb.WARMING, pb.READY)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        ((transport.TOKEN_METADATA, "wrong"),),
        ((transport.TOKEN_METADATA, ""),),
        (("x-token", "right"),),
        ((transport.TOKEN_METADATA, "right"), (transport.TOKEN_METADATA, "right")),
    ],
    ids=["none", "wrong", "empty", "elsewhere", "twice"],
)
async def test_any_other_metadata_is_turned_away(engine: Engine, metadata: tuple[tuple[str, str], ...]) -> None:
    filled = tuple((key, engine.token if value == "right" else value) for key, value in metadata)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await describe(engine.path, filled)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert engine.token not in str(refused.value)


async def test_a_session_without_the_token_is_refused_before_it_sends_anything(engine: Engine) -> None:
    async with grpc.aio.insecure_channel(transport.address(engine.path)) as channel:
        call = EngineStub(channel).Session(metadata=((transport.TOKEN_METADATA, "wrong"),), timeout=PATIENCE)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_the_token_is_in_no_argument_and_the_socket_is_ours_alone(engine: Engine) -> None:
    command_line = Path(f"/proc/{engine.process.pid}/cmdline").read_text()
    assert engine.token not in command_line
    assert engine.path.parent.stat().st_mode & 0o777 == 0o700


def test_an_engine_with_an_empty_token_does_not_start(tmp_path: Path) -> None:
    with running_engine(tmp_path, token="") as engine:
        _, stderr = engine.process.communicate(timeout=PATIENCE)
    assert engine.process.returncode == 2
    assert stderr.count("\n") == 1 and transport.TOKEN_VARIABLE in stderr


def test_a_client_with_an_empty_token_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="empty"):
        transport.credentials("")


def test_tokens_are_never_the_same() -> None:
    assert len({transport.new_token() for _ in range(100)}) == 100


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="mode 0700"):
        transport.prepare_socket(tmp_path / "open" / "engine.sock")


def test_a_path_longer_than_the_kernel_takes_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has \d+ bytes, at most 107"):
        transport.prepare_socket(tmp_path / ("x" * 100) / "engine.sock")


def test_a_socket_somebody_listens_on_is_left_alone_and_a_stale_one_removed(tmp_path: Path) -> None:
    path = tmp_path / "private" / "engine.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(path))
        listener.listen()
        with pytest.raises(ValueError, match="another server listens"):
            transport.prepare_socket(path)
        assert path.exists()
    transport.prepare_socket(path)
    assert not path.exists()


def test_the_generated_code_runs_on_the_oldest_supported_libraries() -> None:
    """Generated code refuses libraries older than its generator: pyproject's floors must not be below it."""
    code = (ROOT / "jaxengine/rpc/engine_pb2.py").read_text() + (ROOT / "jaxengine/rpc/engine_pb2_grpc.py").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(r"Protobuf Python Version: (\d+\.\d+)", code)[1] == re.search(r"protobuf>=([\d.]+)", project)[1]
    assert re.search(r"GENERATED_VERSION = '(\d+\.\d+)", code)[1] == re.search(r"grpcio>=([\d.]+)", project)[1]


def test_the_generated_code_is_that_of_the_protocol_file() -> None:
    """Every field of engine.proto is in the descriptor, with its number; a forgotten regeneration shows here."""
    text = re.sub(r"//[^\n]*", "", (ROOT / "jaxengine/rpc/engine.proto").read_text())
    written = {(name, int(number)) for name, number in re.findall(r"(\w+) = (\d+);", text)}
    file = pb.DESCRIPTOR
    known = {(field.name, field.number) for message in file.message_types_by_name.values() for field in message.fields}
    inner = [enum for message in file.message_types_by_name.values() for enum in message.enum_types]
    enums = [*file.enum_types_by_name.values(), *inner]
    known |= {(value.name, value.number) for enum in enums for value in enum.values}
    assert written == known

"""The adapters that requests may name: what is refused changes nothing, what is dropped from memory is read again."""

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
import pytest

from jaxengine.architecture.adaptation import Adaptable, AdapterShapes, AdapterWeights, LoadedAdapter, LowRank
from jaxengine.device import CPU
from jaxengine.engine.adapter_registry import AdapterRegistry
from jaxengine.model.adapters import abstract_adapters
from jaxengine.request.interface import AdapterRefused, ServedAdapter
from jaxengine.sharding import make_mesh
from tests.gpu.scale import TINY

OUT, QKV = "layers.0.out", "layers.0.qkv"
TARGETS = {OUT: Adaptable(), QKV: Adaptable((0, 0, 1, 2), 1)}
SHAPES = AdapterShapes(TARGETS, slots=2, rank=4, dtype="float32")


def weights(seed: int, *, rank: int = 2, largest: float = 1.0, name: str = OUT) -> AdapterWeights:
    """Of matrix `name`: [128, 4 heads, 64]."""
    a = np.full((1, rank, 256), seed + 1, np.float32)
    matrices = {name: LowRank(a, np.full((128, rank), largest, np.float32))}
    return AdapterWeights("", "", sha256(bytes([seed])).digest(), matrices)


class DoesNotExist(ValueError, LookupError):
    pass


@dataclass
class Reader:
    """Reads from `files`, unless told to wait, and counts."""

    files: dict[str, AdapterWeights | Exception] = field(default_factory=dict)
    targets: Mapping[str, Adaptable] = field(default_factory=lambda: TARGETS)
    reads: list[str] = field(default_factory=list)
    may_read: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_read.set()

    def read(self, name: str) -> AdapterWeights:
        self.reads.append(name)
        assert self.may_read.wait(10)
        found = self.files.get(name, DoesNotExist(f"there is no {name}"))
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def reader() -> Reader:
    return Reader({f"/{number}": weights(number) for number in range(4)})


def made(reader: Reader, *, shapes: AdapterShapes = SHAPES, most: int | None = None) -> AdapterRegistry:
    stacks = abstract_adapters(TINY, shapes, make_mesh(1), CPU)
    return AdapterRegistry(reader, shapes, stacks, model="org/model", most=most)


@pytest.fixture
def registry(reader: Reader) -> AdapterRegistry:
    return made(reader)


def fetched(registry: AdapterRegistry, name: str) -> tuple[LoadedAdapter | None, str]:
    """What a request for `name` is given, within some seconds."""
    told: list[tuple[LoadedAdapter | None, str]] = []
    done = threading.Event()

    def tell(adapter: LoadedAdapter | None, problem: str) -> None:
        told.append((adapter, problem))
        done.set()

    registry.fetch(name, tell)
    assert done.wait(10), "nobody was told"
    assert len(told) == 1
    return told[0]


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(AdapterRefused) as error:
        call()
    return error.value.reason, str(error.value)


def names(registry: AdapterRegistry) -> list[str]:
    return [each.name for each in registry.served()]


def test_what_is_loaded_is_served_under_its_name_in_the_layout_of_a_slot(registry: AdapterRegistry) -> None:
    assert registry.load("x", "/1") == ServedAdapter("x", "/1", rank=2, digest=weights(1).digest)
    registry.check("x")
    registry.check("")  # the model itself
    adapter, problem = fetched(registry, "x")
    assert adapter is not None and problem == "" and adapter.digest == weights(1).digest
    a, b = adapter.arrays[OUT]
    assert (a.shape, b.shape) == ((4, 2, 2, 64), (1, 4, 128))  # 2 heads of keys, 2 queries each
    assert (a[:2] == 2).all() and not a[2:].any() and (b[:, :2] == 1).all() and not b[:, 2:].any()
    assert adapter.arrays.keys() == {OUT}


def test_a_name_that_is_taken_is_refused_and_keeps_what_it_had(registry: AdapterRegistry, reader: Reader) -> None:
    registry.load("x", "/1")
    assert refusal(lambda: registry.load("x", "/2")) == ("taken", "an adapter is called 'x' already")
    for in_place in (False, True):
        refused = refusal(lambda in_place=in_place: registry.load("org/model", "/2", in_place=in_place))
        assert refused == ("taken", "'org/model' is the name of the model itself")
    assert registry.served() == (ServedAdapter("x", "/1", 2, weights(1).digest),)
    assert reader.reads == ["/1"]  # not read in vain


def test_in_place_the_name_is_another_adapter_s_and_who_has_the_old_one_keeps_it(registry: AdapterRegistry) -> None:
    for name in "xy":
        registry.load(name, "/1")
    old, _ = fetched(registry, "x")
    registry.load("x", "/2", in_place=True)
    new, _ = fetched(registry, "x")
    assert old is not None and new is not None and old.digest != new.digest
    assert (old.arrays[OUT][0][:2] == 2).all()
    other, same = ServedAdapter("x", "/2", 2, weights(2).digest), ServedAdapter("y", "/1", 2, weights(1).digest)
    assert registry.served() == (other, same)


def test_in_place_of_nothing_is_a_load(registry: AdapterRegistry) -> None:
    registry.load("x", "/1", in_place=True)
    assert names(registry) == ["x"]


def test_one_that_cannot_be_read_in_place_leaves_the_old_one(registry: AdapterRegistry, reader: Reader) -> None:
    registry.load("x", "/1")
    reader.files["/1"] = ValueError("x.safetensors is damaged")
    assert refusal(lambda: registry.load("x", "/1", in_place=True)) == ("invalid", "x.safetensors is damaged")
    assert fetched(registry, "x")[0] is not None


def test_after_unloading_nobody_finds_it_and_its_name_is_free(registry: AdapterRegistry) -> None:
    registry.load("x", "/1")
    registry.unload("x")
    assert registry.served() == ()
    with pytest.raises(ValueError, match="no adapter is called 'x'"):
        registry.check("x")
    assert fetched(registry, "x") == (None, "no adapter is called 'x'")
    assert refusal(lambda: registry.unload("x")) == ("missing", "no adapter is called 'x'")
    registry.load("x", "/2")


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (DoesNotExist("there is no /9"), "missing", "there is no /9"),
        (ValueError("r is -1"), "invalid", "r is -1"),
        (OSError("disk"), "invalid", "disk"),
        (weights(0, rank=5), "invalid", "rank 5 is more than max_lora_rank 4"),
        (weights(0, name="layers.0.down"), "invalid", "it changes layers.0.down, which no adapter named at start does"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_reason(
    registry: AdapterRegistry, reader: Reader, found: AdapterWeights | Exception, reason: str, message: str
) -> None:
    reader.files["/9"] = found
    told, text = refusal(lambda: registry.load("x", "/9"))
    assert told == reason and message in text
    assert names(registry) == []


@pytest.mark.parametrize(("largest", "fits"), [(65504.0, True), (70000.0, False)])
def test_a_number_that_float16_cannot_hold_is_refused(reader: Reader, largest: float, fits: bool) -> None:
    registry = made(reader, shapes=replace(SHAPES, dtype="float16"))
    reader.files["/9"] = weights(0, largest=largest)
    if fits:
        registry.load("x", "/9")
    else:
        assert refusal(lambda: registry.load("x", "/9")) == (
            "invalid",
            "a number of layers.0.out is more than lora_dtype float16 can hold",
        )


def test_an_engine_without_adapters_says_what_enables_them() -> None:
    registry = AdapterRegistry()
    reason, message = refusal(lambda: registry.load("x", "/1"))
    assert reason == "off" and "--enable-lora" in message and "--lora-adapters" in message
    with pytest.raises(ValueError, match="--enable-lora"):
        registry.check("x")
    registry.check("")
    assert registry.served() == ()
    assert refusal(lambda: registry.unload("x"))[0] == "missing"


# --- fewer places in host memory than adapters ---------------------------------------------------------------------


def in_memory(registry: AdapterRegistry) -> set[str]:
    return {name for name, entry in registry._entries.items() if entry.loaded is not None}


def test_the_one_unused_for_longest_goes_and_is_read_again_when_it_is_asked_for(reader: Reader) -> None:
    registry = made(reader, most=2)
    for number in range(3):
        registry.load(str(number), f"/{number}")
    assert in_memory(registry) == {"1", "2"} and names(registry) == ["0", "1", "2"]
    assert fetched(registry, "1")[0] is not None
    again, _ = fetched(registry, "0")
    assert again is not None and again.digest == weights(0).digest
    assert in_memory(registry) == {"1", "0"}
    assert reader.reads == ["/0", "/1", "/2", "/0"]


def test_all_stay_where_no_limit_is_given(reader: Reader, registry: AdapterRegistry) -> None:
    for number in range(4):
        registry.load(str(number), f"/{number}")
    for number in range(4):
        assert fetched(registry, str(number))[0] is not None
    assert len(reader.reads) == 4


@pytest.mark.parametrize(
    "now",
    [weights(3), DoesNotExist("gone"), OSError("disk"), RuntimeError("a bug")],
    ids=lambda now: type(now).__name__,
)
def test_files_that_are_not_what_they_were_end_the_request_and_harm_nobody(
    reader: Reader, now: AdapterWeights | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    registry = made(reader, most=1)
    registry.load("x", "/1")
    registry.load("y", "/2")
    reader.files["/1"] = now
    assert fetched(registry, "x") == (None, "adapter 'x' cannot be read again")
    assert "cannot be read again" in caplog.text
    assert fetched(registry, "y")[0] is not None and names(registry) == ["x", "y"]
    reader.files["/1"] = weights(1)
    assert fetched(registry, "x")[0] is not None, "it is not tried again"


def test_many_requests_for_one_that_was_dropped_have_it_read_once(reader: Reader) -> None:
    registry = made(reader, most=1)
    registry.load("x", "/1")
    registry.load("y", "/2")
    reader.may_read.clear()
    told: list[LoadedAdapter | None] = []
    for _ in range(5):
        registry.fetch("x", lambda adapter, _: told.append(adapter))
    assert told == []  # nobody is made to wait
    reader.may_read.set()
    assert fetched(registry, "x")[0] is not None
    assert len(told) == 5 and len({id(each) for each in told}) == 1
    assert reader.reads == ["/1", "/2", "/1"]


@pytest.mark.parametrize("then", ["unloaded", "replaced"])
def test_what_is_read_again_for_a_name_that_is_gone_takes_no_place(reader: Reader, then: str) -> None:
    registry = made(reader, most=1)
    registry.load("x", "/1")
    registry.load("y", "/2")
    reader.may_read.clear()
    told: list[LoadedAdapter | None] = []
    registry.fetch("x", lambda adapter, _: told.append(adapter))
    if then == "unloaded":
        registry.unload("x")
    else:
        registry.load("x", "/3", in_place=True, weights=weights(3))
    reader.may_read.set()
    registry._threads.shutdown()
    assert [each and each.digest for each in told] == [weights(1).digest]  # accepted when it was served
    assert in_memory(registry) == ({"y"} if then == "unloaded" else {"x"})
    assert fetched_digest(registry, "x") == (None if then == "unloaded" else weights(3).digest)


def fetched_digest(registry: AdapterRegistry, name: str) -> bytes | None:
    found = fetched(registry, name)[0]
    return found.digest if found else None


def test_many_threads_leave_it_whole(reader: Reader) -> None:
    registry = made(reader, most=2)
    right = {f"{number}": weights(number).digest for number in range(4)}

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            name = chance.choice([*right])
            try:
                if chance.random() < 0.3:
                    registry.load(name, f"/{name}", in_place=chance.random() < 0.5)
                elif chance.random() < 0.2:
                    registry.unload(name)
                else:
                    assert fetched_digest(registry, name) in (right[name], None)
            except AdapterRefused as error:
                assert error.reason in ("taken", "missing")

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, seed) for seed in range(6)]:
            done.result(60)
    assert in_memory(registry) == set(registry._recent) and len(registry._recent) <= 2
    assert set(names(registry)) <= right.keys()

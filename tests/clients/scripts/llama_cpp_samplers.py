"""llama.cpp's own samplers on given logits, without a model: its C functions, as the wheel of `xllamacpp` exports them.

The job names an .npz file. Its `chains` are a JSON text of one list a chain: what is called, in this order, each
[name, arguments …]. A chain gets the ids of its row of `history` (-1 is none) and then `steps` rows of `logits` [N, V]
one after the other. The answer is another .npz file: `logits`, -inf where an id was dropped, and `chosen` [N], the ids
that a chain drew, -1 if it draws none.

Ids at -inf are taken away before each sampler, as some count them. So are ids without a probability in float32: of
these llama.cpp's typical makes NaN.
"""

import ctypes
import importlib.util
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FAINTEST = -80  # log-probability; below -87 a float32 loses digits and below -103 it is 0
MOST_BYTES = 8 << 30  # the functions' arguments change between releases, and wrong ones allocate without end
SEED = 1
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
C_INT, C_FLOAT, SIZE, POINTER = ctypes.c_int32, ctypes.c_float, ctypes.c_size_t, ctypes.c_void_p
DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"  # breakers are ids, not texts


class Candidates(ctypes.Structure):
    _fields_ = (("data", POINTER), ("size", SIZE), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool))


class Vector(ctypes.Structure):
    """A `std::vector`."""

    _fields_ = (("begin", POINTER), ("end", POINTER), ("capacity", POINTER))

    @classmethod
    def of(cls, array: Any) -> "Vector":
        begin = ctypes.addressof(array)
        end = begin + ctypes.sizeof(array)
        return cls(begin, end, end)


def load() -> ctypes.PyDLL:
    specification = importlib.util.find_spec("xllamacpp")
    assert specification is not None and specification.origin is not None
    return ctypes.PyDLL(str(next(Path(specification.origin).parent.glob("*.so"))))


resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
library = load()


def function(name: str, *arguments: Any, result: Any = None) -> Callable[..., Any]:
    found = library[name]
    found.argtypes, found.restype = arguments, result
    return found


def make(name: str, *arguments: Any) -> Callable[..., int]:
    return function(f"llama_sampler_init_{name}", *arguments, result=POINTER)


apply = function("llama_sampler_apply", POINTER, ctypes.POINTER(Candidates))
accept = function("llama_sampler_accept", POINTER, C_INT)
free = function("llama_sampler_free", POINTER)
temperature = make("temp_ext", C_FLOAT, C_FLOAT, C_FLOAT)
top_k = make("top_k", C_INT)
top_p = make("top_p", C_FLOAT, SIZE)
min_p = make("min_p", C_FLOAT, SIZE)
typical = make("typical", C_FLOAT, SIZE)
top_n_sigma = make("top_n_sigma", C_FLOAT)
xtc = make("xtc", C_FLOAT, C_FLOAT, SIZE, ctypes.c_uint32)
penalties = make("penalties", C_INT, C_INT, C_FLOAT, C_FLOAT, C_FLOAT)
mirostat = make("mirostat_v2", ctypes.c_uint32, C_FLOAT, C_FLOAT)
dry = function(DRY, C_FLOAT, C_FLOAT, C_INT, C_INT, ctypes.POINTER(Vector), result=POINTER)


def dry_with_breakers(multiplier: float, base: float, allowed: int, last: int, breakers: list[int]) -> int:
    ids = [(C_INT * 1)(id) for id in breakers]
    words = (Vector * len(ids))(*map(Vector.of, ids))
    return dry(multiplier, base, allowed, last, Vector.of(words))


MAKE: dict[str, Callable[..., int]] = {
    "temperature": temperature,
    "top_k": top_k,
    "top_p": lambda p: top_p(p, 0),
    "min_p": lambda p: min_p(p, 0),
    "typical_p": lambda p: typical(p, 0),
    "top_n_sigma": top_n_sigma,
    "xtc": lambda probability, threshold: xtc(probability, threshold, 0, SEED),
    "penalties": penalties,
    "mirostat": lambda tau, eta: mirostat(SEED, tau, eta),
    "dry": dry_with_breakers,
}


def applied(sampler: int, candidates: np.ndarray, floor: float) -> tuple[np.ndarray, int]:
    """The candidates above `floor` that `sampler` leaves, and the id that it drew, or -1."""
    left = np.ascontiguousarray(candidates[candidates["logit"] > floor])
    array = Candidates(left.ctypes.data, len(left), -1, False)
    apply(sampler, array)
    first = (array.data - left.ctypes.data) // CANDIDATE.itemsize
    left = left[first : first + array.size]
    return left, int(left["id"][array.selected]) if array.selected >= 0 else -1


def run(chain: list[list[Any]], history: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The logits [steps, V] behind the chain, and the ids drawn."""
    samplers = [MAKE[name](*arguments) for name, *arguments in chain]
    for sampler in samplers:
        for id in history[history >= 0]:
            accept(sampler, int(id))
    left, drawn = np.full_like(logits, -np.inf), []
    for before, after in zip(logits, left, strict=True):
        candidates, chosen = np.zeros(len(before), CANDIDATE), -1
        candidates["id"], candidates["logit"] = np.arange(len(before)), before
        for sampler, (name, *_) in zip(samplers, chain, strict=True):
            floor = candidates["logit"].max() + FAINTEST if name == "typical_p" else -np.inf
            candidates, chosen = applied(sampler, candidates, floor)
        after[candidates["id"]] = candidates["logit"]
        drawn.append(chosen)
    for sampler in samplers:
        free(sampler)
    return left, drawn


job = json.loads(sys.argv[1])
with np.load(job["given"]) as given:
    rows_given, history = given["logits"], given["history"]
    chains, steps = json.loads(str(given["chains"])), int(given["steps"])
logits, chosen = np.empty_like(rows_given), np.empty(len(rows_given), np.int32)
for number, chain in enumerate(chains):
    rows = slice(number * steps, (number + 1) * steps)
    logits[rows], chosen[rows] = run(chain, history[number], rows_given[rows])
np.savez(job["answer"], logits=logits, chosen=chosen)
print(json.dumps({"chains": len(chains)}))

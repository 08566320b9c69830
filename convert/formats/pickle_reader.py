"""A pickle read as data: the few opcodes that files of tensors are made of, and no way to call anything.

Python's own unpickler calls what a file names. Here a name becomes a `Global`, and the caller's table says which names
may be called and what is built instead. Every other name is refused, and so is every opcode that could build or change
an object. Keys are strings or numbers, because hashing a hostile key can overflow the C stack. Protocols 0 to 5, as far
as `torch.save` uses them.
"""

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Build = Callable[..., Any]

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
VALUES = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
STRINGS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
IGNORED = ("PROTO", "FRAME")
OWN_CLASS = "torch._tensor._rebuild_from_type_v2"


class UnpicklingError(ValueError):
    """The pickle holds something that is not data. The message says what, and quotes little of the file."""


@dataclass(frozen=True)
class Global:
    """A name that the pickle refers to: `module.name`. Nothing is imported."""

    name: str


def unpickle(file: io.BytesIO, build: Mapping[str, Build | None], load: Build | None = None) -> Any:
    """The object pickled at `file`'s position; afterwards the position is behind it.

    Args:
        build: by full name, each callable that is allowed: the function that is called instead of it, or None where
            the name may only be mentioned.
        load: turns a persistent id into a value.

    Raises:
        UnpicklingError: an unknown name or opcode, or no pickle at all.
    """
    machine = _Machine(build, load)
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except UnpicklingError:
        raise
    except Exception as error:  # what a malformed pickle leads to: an empty stack, bytes that are no text, …
        raise UnpicklingError(f"malformed pickle ({type(error).__name__})") from error
    raise UnpicklingError("pickle without an end")


class _Machine:
    """The stack, the marks in it and the memo of one pickle."""

    def __init__(self, build: Mapping[str, Build | None], load: Build | None) -> None:
        self.build, self.load = build, load
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in IGNORED:
            return
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in VALUES or name in STRINGS:
            self.stack.append(argument)
        elif name in TUPLES:
            self.stack.append(self._last(TUPLES[name]))
        elif (handle := getattr(self, f"_{name.lower()}", None)) is not None:
            handle(argument)
        else:
            raise UnpicklingError(f"opcode {name} is not allowed in a file of tensors")

    def _last(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise UnpicklingError("malformed pickle (stack)")
        values = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return values

    def _marked(self) -> tuple[Any, ...]:
        return self._last(len(self.stack) - self.marks.pop())

    def _mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def _tuple(self, _: None) -> None:
        self.stack.append(self._marked())

    def _empty_list(self, _: None) -> None:
        self.stack.append([])

    def _empty_dict(self, _: None) -> None:
        self.stack.append({})

    def _list(self, _: None) -> None:
        self.stack.append(list(self._marked()))

    def _dict(self, _: None) -> None:
        self._set({}, self._marked())

    def _append(self, _: None) -> None:
        self._extend(self._last(1))

    def _appends(self, _: None) -> None:
        self._extend(self._marked())

    def _extend(self, values: tuple[Any, ...]) -> None:
        if not isinstance(self.stack[-1], list):
            raise UnpicklingError("only a list can be appended to")
        self.stack[-1].extend(values)

    def _setitem(self, _: None) -> None:
        self._set(None, self._last(2))

    def _setitems(self, _: None) -> None:
        self._set(None, self._marked())

    def _set(self, new: dict[Any, Any] | None, items: tuple[Any, ...]) -> None:
        """Put `items`, key and value in turn, into `new`, which is pushed, or into the dictionary on the stack."""
        if new is not None:
            self.stack.append(new)
        target, keys = self.stack[-1], items[::2]
        if not isinstance(target, dict) or not all(type(key) in (str, int) for key in keys):
            raise UnpicklingError("only dictionaries with keys of text or numbers are allowed")
        target.update(zip(keys, items[1::2], strict=True))

    def _put(self, place: Any) -> None:
        self.memo[int(place)] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _get(self, place: Any) -> None:
        self.stack.append(self.memo[int(place)])

    _binget = _long_binget = _get

    def _pop(self, _: None) -> None:
        self.stack.pop()

    def _global(self, argument: str) -> None:
        self._name(*argument.split(" ", 1))

    def _stack_global(self, _: None) -> None:
        self._name(*self._last(2))

    def _name(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full == OWN_CLASS:
            hint = "as torchao's, which are read of safetensors alone"
            raise UnpicklingError(f"has tensors of a class of their own, {hint}: save the model so")
        if full not in self.build:
            raise UnpicklingError(f"the pickle names {full[:80]!r}, which no file of tensors needs")
        self.stack.append(Global(full))

    def _reduce(self, _: None) -> None:
        function, arguments = self._last(2)
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise UnpicklingError("the pickle calls what is not a function")
        build = self.build[function.name]
        if build is None:
            raise UnpicklingError(f"the pickle calls {function.name}, which is only a name")
        self.stack.append(build(*arguments))

    def _build(self, _: None) -> None:
        """Drop the attributes of an object, such as versions of modules and hooks: none is a tensor."""
        self._last(1)

    def _binpersid(self, _: None) -> None:
        if self.load is None:
            raise UnpicklingError("a persistent id where none can be")
        self.stack.append(self.load(*self._last(1)))

"""As much of a pickle as a PyTorch state dict needs, and no more.

A pickle is a program for a stack machine; Python's own machine imports what the program names and calls it. This one
knows the instructions below, looks names up in a table of its own and calls nothing else, so a pickle that holds more
than tensors is refused by name and none of it runs.
"""

import io
import pickletools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Thousands of times a BERT's; every pickle is read whole.
MOST_BYTES = 16 * 2**20

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINSTRING", "BINSTRING"}
_CONTAINERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class Global:
    """A name that a pickle may ask for, and what calling it gives."""

    def __init__(self, name: str, call: Callable[..., Any] | None = None) -> None:
        self.name, self.call = name, call


class PickleError(ValueError):
    """What a pickle holds instead of tensors."""


def checked_pairs(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Pairs for a dict of strings: integers can all have one hash, and a deeply nested tuple's would crash Python."""
    for key, value in pairs:
        if not isinstance(key, str):
            raise PickleError(f"a {type(key).__name__} as a key")
        yield key, value


def load(stream: io.BytesIO, names: dict[str, Global], resolve: Callable[[Any], Any]) -> Any:
    """Run the pickle at the stream's position and leave the stream behind it.

    Args:
        stream: In memory, so that a length which lies takes no more than what is there.
        names: What may be asked for, by `"module name"`.
        resolve: Gives the object of a persistent id, which is how PyTorch refers to storages.

    Raises:
        PickleError: An instruction or a name that a state dict does not need, or a broken pickle.
    """
    try:
        return _Machine(names, resolve).run(stream)
    except PickleError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        # All that is left to go wrong: an end too early, or an instruction without its operands on the stack.
        raise PickleError(f"a broken pickle ({type(error).__name__})") from None


class _Machine:
    def __init__(self, names: dict[str, Global], resolve: Callable[[Any], Any]) -> None:
        self._names, self._resolve = names, resolve
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._left = 0

    def run(self, stream: io.BytesIO) -> Any:
        self._left = stream.getbuffer().nbytes
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                break
            self._step(opcode.name, argument)
        (value,) = self._stack
        return value

    def _step(self, name: str, argument: Any) -> None:
        push = self._stack.append
        if name in _LITERALS:
            push(argument)
        elif name in _CONSTANTS:
            push(_CONSTANTS[name])
        elif name in _CONTAINERS:
            push(_CONTAINERS[name]())
        elif name in _TUPLES:
            push(tuple(reversed([self._stack.pop() for _ in range(_TUPLES[name])])))
        elif name == "MARK":
            push(_MARK)
        elif name == "TUPLE":
            push(tuple(self._since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = [self._stack.pop()] if name == "APPEND" else self._since_mark()
            self._top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._since_mark() if name == "SETITEMS" else [self._stack.pop(-2), self._stack.pop()]
            self._top(dict).update(checked_pairs(zip(items[::2], items[1::2], strict=True)))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            push(self._memo[argument])
        elif name == "GLOBAL":
            if argument not in self._names:
                raise PickleError(f"the name {argument[:80]!r}")
            push(self._names[argument])
        elif name == "REDUCE":
            arguments, function = self._stack.pop(), self._stack.pop()
            if not isinstance(function, Global) or function.call is None or not isinstance(arguments, tuple):
                raise PickleError("a call")
            self._spend(arguments, *arguments)
            push(function.call(*arguments))
        elif name == "BINPERSID":
            push(self._resolve(self._stack.pop()))
        elif name == "BUILD":  # `OrderedDict._metadata`: version numbers of modules.
            self._stack.pop()
            self._top(dict)
        elif name != "PROTO":
            raise PickleError(f"the instruction {name}")

    def _spend(self, *values: Any) -> None:
        """Count what calls go through: a few bytes may hand one long list to each of a million."""
        self._left -= sum(len(value) for value in values if isinstance(value, (tuple, list, dict)))
        if self._left < 0:
            raise PickleError("calls of more values than it holds")

    def _since_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise PickleError(f"a {type(self._stack[-1]).__name__} in place of a {kind.__name__}")
        return self._stack[-1]

"""Read only those parts of a pickle that a PyTorch state dict needs.

A pickle is a program for a stack machine. Python's own machine imports and calls what the program names. This one knows
only the instructions below and calls only functions in a table of its own. So nothing in a pickle is executed, and one
that holds more than tensors is rejected. The message names what it holds.
"""

import io
import pickletools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Thirty times the size of BERT large's pickle. Every pickle is read as a whole, and each of its bytes can make an
# object.
MOST_BYTES = 2 * 2**20

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINSTRING", "BINSTRING"}
_CONTAINERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class Global:
    """A name that a pickle may use, and the function that runs when the pickle calls it."""

    def __init__(self, name: str, call: Callable[..., Any] | None = None) -> None:
        self.name, self.call = name, call


class PickleError(ValueError):
    """A pickle that does not hold only tensors; the message says what it holds."""


def checked_pairs(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs with string keys: integers can share one hash, and hashing deeply nested tuples crashes Python."""
    for key, value in pairs:
        if not isinstance(key, str):
            raise PickleError(f"a key of type {type(key).__name__}")
        yield key, value


def load(stream: io.BytesIO, names: dict[str, Global], resolve: Callable[[Any], Any]) -> Any:
    """Run the pickle at the stream's position and leave the stream at its end.

    Args:
        stream: In memory, so that a false length reads no more than what is there.
        names: Names that may be used, by `"module name"`.
        resolve: Returns the object of a persistent id, by which PyTorch refers to storages.

    Raises:
        PickleError: The pickle is broken, or has an instruction or name that a state dict does not need.
    """
    try:
        return _Machine(names, resolve).run(stream)
    except PickleError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        # What can still go wrong: an early end, or an instruction without its operands on the stack.
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
        """Limit the values that calls process: a few bytes could pass one long list to a million calls."""
        self._left -= sum(len(value) for value in values if isinstance(value, (tuple, list, dict)))
        if self._left < 0:
            raise PickleError("calls that pass more values than it holds")

    def _since_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise PickleError(f"an object of type {type(self._stack[-1]).__name__} in place of a {kind.__name__}")
        return self._stack[-1]

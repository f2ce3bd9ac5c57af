"""Process a few items at a time on all cores, and return the results in order."""

import multiprocessing
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from types import ModuleType
from typing import Any, TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_order(
    pieces: Iterator[Piece], work: Callable[[Piece], Result], workers: int, light: bool = True
) -> Iterator[Result]:
    """Yield the result of the work on each piece, in the order of the pieces.

    Args:
        pieces: Items to work on; a few are in memory at a time.
        work: Function of one piece.
        workers: Number of processes. A single worker, or a single piece, runs in this process.
        light: Whether the work needs only modules of this package, and nothing that its `__init__` imports.
    """
    first = next(pieces, None)
    if first is None:
        return
    second = next(pieces, None)
    if workers == 1 or second is None:
        yield from map(work, chain([first] if second is None else [first, second], pieces))
        return
    waiting: deque[Future[Result]] = deque()
    with _processes(workers, work, light) as executor:
        for piece in chain([first, second], pieces):
            with _without_script():
                waiting.append(executor.submit(work_on, piece))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# Importing these packages takes seconds, most of them for Keras, which making arrays from text does not need.
_PACKAGES = ("keras_bert_zoo", "keras_bert_zoo.pretraining")
_START = f"""
import os, sys, types
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # There is one process per core already.
for name, path in packages.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = path
from {__name__} import take
take(work)
"""


@contextmanager
def _processes(workers: int, work: Callable[[Any], Any], light: bool) -> Iterator[ProcessPoolExecutor]:
    """Yield an executor whose processes import what the work needs, but not Keras if light."""
    packages = {name: list(sys.modules[name].__path__) for name in _PACKAGES if light}
    with _without_script():  # What is defined only in the script cannot be sent.
        start = _START, {"packages": packages, "work": pickle.dumps(work)}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=exec, initargs=start) as executor:
        try:
            yield executor
        except BrokenProcessPool:
            raise ChildProcessError(
                "All worker processes must run to the end; fewer workers need less memory. "
                f"Received: one of {workers} that ended early"
            ) from None
        finally:
            executor.shutdown(cancel_futures=True)  # After an error, cancel what has not started.


_starting = threading.Lock()


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide the caller's script while a piece is handed over: a process that this starts must not import it.

    `__main__` belongs to the whole process, so it is hidden no longer than that. Other threads that start processes
    here wait.
    """
    with _starting:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


_work: Callable[[Any], Any]


def take(work: bytes) -> None:
    """Initialise a process. The work is sent once, not with each piece, because a tokenizer is large."""
    global _work
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work = pickle.loads(work)


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one; killed, it would leave this one waiting for work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def work_on(piece: Any) -> Any:
    return _work(piece)

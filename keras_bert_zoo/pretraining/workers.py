"""Work on all cores, few pieces at a time, results in order."""

import importlib.util
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain
from types import ModuleType
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_order(pieces: Iterator[Piece], work: Callable[[Piece], Result], workers: int) -> Iterator[Result]:
    """The results of work on pieces, in their order; one worker, or one piece, is worked on in this process."""
    first = next(pieces, None)
    if first is None:
        return
    second = next(pieces, None)
    if workers == 1 or second is None:
        yield from map(work, chain([first] if second is None else [first, second], pieces))
        return
    waiting: deque[Future[Result]] = deque()
    with _light_processes(workers) as executor:
        for piece in chain([first, second], pieces):
            waiting.append(executor.submit(work, piece))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _light_processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that start neither TensorFlow nor PyTorch nor the caller's script to turn text into arrays."""
    environment, main = {**os.environ}, sys.modules["__main__"]
    if importlib.util.find_spec("jax") is not None:  # Keras' NumPy backend imports it.
        os.environ["KERAS_BACKEND"] = "numpy"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # There is a process a core already.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as executor:
            yield executor
    finally:
        sys.modules["__main__"] = main
        os.environ.clear()
        os.environ.update(environment)

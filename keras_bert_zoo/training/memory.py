"""Memory that a pass over data keeps from one batch to the next, where glibc would return it to the system."""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import keras

# From malloc.h: how much free memory at the heap's end is kept, the size above which an array gets memory of its own,
# which is returned with it, and how many arrays may.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_TOLD = ("MALLOC_MMAP_", "MALLOC_TRIM_", "MALLOC_TOP_", "GLIBC_TUNABLES")

_passes = 0
_lock = threading.Lock()


@contextmanager
def memory_kept() -> Iterator[None]:
    """Context in which this process keeps the memory of arrays that its main thread frees, for the next ones.

    By default glibc returns large arrays to the system, which must clear the memory again for the next batch. A step of
    MiniLM on 8 texts of 384 tokens waits for 50,000 pages on PyTorch and 180,000 on JAX, a fifth to a quarter of its
    time. Afterwards glibc returns large arrays again, and what was kept as soon as the heap's end is free. It has its
    own thresholds then, whatever a program has set by `mallopt`. Nothing changes without glibc, or if the environment
    configures these thresholds.
    """
    global _passes
    mallopt = _mallopt()
    if mallopt is None:
        yield
        return
    with _lock:  # Passes may be nested, or run in several threads.
        _passes += 1
        if _passes == 1:
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, -1)  # Whatever is free there.
    try:
        yield
    finally:
        with _lock:
            _passes -= 1
            if not _passes:
                _put_back(mallopt)


def _put_back(mallopt: Callable[[int, int], int]) -> None:
    mallopt(_MMAP_MAX, 65536)  # The default.
    mallopt(_MMAP_THRESHOLD, 2**25)  # The default grows with what is freed; these two are where it ends.
    mallopt(_TRIM_THRESHOLD, 2**26)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's `mallopt` if it may be used; musl has none."""
    if not sys.platform.startswith("linux") or any(name.startswith(_TOLD) for name in os.environ):
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)


def _begin_in_fork() -> None:
    """Leave the passes to the parent: a process that it forks meanwhile, such as one that loads data, runs none."""
    global _passes, _lock
    mallopt = _mallopt()
    if _passes and mallopt is not None:
        _put_back(mallopt)
    _passes, _lock = 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)

if keras.backend.backend() == "jax" and _mallopt() is not None and "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
    import jax

    # Else the CPU runs programs in threads of its own, where glibc keeps no large arrays. This must come before JAX
    # makes its first array. On two cores nothing is lost: while they compute, they have no time for Python.
    jax.config.update("jax_cpu_enable_async_dispatch", False)

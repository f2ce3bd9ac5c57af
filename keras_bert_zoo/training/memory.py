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

if keras.backend.backend() == "jax" and "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
    import jax

    # Else the CPU runs programs in threads of its own, where glibc keeps no large arrays. This must come before JAX
    # makes its first array. Nothing is lost by waiting: while the cores compute, they have no time for Python.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


@contextmanager
def memory_kept() -> Iterator[None]:
    """Context in which this process keeps the memory of freed arrays for the next ones.

    By default glibc returns large arrays to the system, which must clear the memory again for the next batch. A step of
    MiniLM on 8 texts of 384 tokens waits for 50,000 pages on PyTorch and 180,000 on JAX, a quarter to a third of its
    time. Afterwards glibc returns memory as before. Nothing changes without glibc, or if the environment configures it.
    """
    global _passes
    mallopt = _mallopt()
    if mallopt is None or any(name.startswith(_TOLD) for name in os.environ):
        yield
        return
    with _lock:  # Passes may be nested, or run in several threads.
        _passes += 1
        if _passes == 1:
            mallopt(_MMAP_MAX, 0)
            mallopt(_TRIM_THRESHOLD, -1)  # No end is returned.
    try:
        yield
    finally:
        with _lock:
            _passes -= 1
            if not _passes:
                mallopt(_MMAP_MAX, 65536)  # The default.
                mallopt(_MMAP_THRESHOLD, 2**25)  # The default grows with what is freed; these two are where it ends.
                mallopt(_TRIM_THRESHOLD, 2**26)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None  # musl has none.

"""Configure how glibc manages the memory of a process that trains or predicts."""

import ctypes
import os
import sys

# From malloc.h: how much free memory at the heap's end is kept, and the size above which a freed array is returned.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_TOLD = ("MALLOC_MMAP_", "MALLOC_TRIM_", "MALLOC_TOP_", "GLIBC_TUNABLES")


def keep_memory() -> None:
    """Make this process keep the memory of freed large arrays for the next batch.

    By default glibc returns each one to the system, which must clear the memory again: a pre-training step of BERT base
    on PyTorch waits for 100,000 pages. Nothing changes if the environment configures glibc's malloc, or without glibc.
    """
    if not sys.platform.startswith("linux") or any(name.startswith(_TOLD) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has no mallopt.
        mallopt(_MMAP_THRESHOLD, 2**30) or mallopt(_MMAP_THRESHOLD, 2**25)  # The most that older versions accept.
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)

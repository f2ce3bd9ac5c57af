"""What glibc does with the memory of a process that trains or predicts."""

import ctypes
import os
import sys

# Of malloc.h: from which size on an array is given back, and how much of what is free at the heap's end is kept.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_TOLD = ("MALLOC_MMAP_", "MALLOC_TRIM_", "MALLOC_TOP_", "GLIBC_TUNABLES")


def keep_memory() -> None:
    """Have this process keep what large arrays leave, for those of the next batch.

    glibc gives each back to the system, which clears the memory anew: a step of pre-training BERT base on PyTorch waits
    for 100,000 pages. Nothing is changed where the environment tells glibc something, or where there is no glibc.
    """
    if not sys.platform.startswith("linux") or any(name.startswith(_TOLD) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none.
        mallopt(_MMAP_THRESHOLD, 2**30)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)

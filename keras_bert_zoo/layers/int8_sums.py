"""Products of int8 by float32 matmuls, for processors on which the backend's own take many times as long."""

from functools import reduce
from typing import Any

from keras import ops

_MOST = 2**24 // 128**2  # So many products of two int8 values have a sum that float32 holds, whatever their order.


def sums_in_float32(rows: Any, kernel: Any) -> Any:
    """Return `rows @ kernel`, exactly, of float32 `[rows, m]` that are whole, -128 to 127, and int8 `[m, n]`.

    Returns:
        float32, or int32 if `m` is so large that float32 would round.
    """
    starts = range(0, kernel.shape[0], _MOST)
    cuts = [(rows[:, start : start + _MOST], kernel[start : start + _MOST]) for start in starts]
    sums = [ops.matmul(left, ops.cast(right, "float32")) for left, right in cuts]
    return sums[0] if len(sums) == 1 else reduce(ops.add, (ops.cast(each, "int32") for each in sums))

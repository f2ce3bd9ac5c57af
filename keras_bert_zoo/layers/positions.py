"""Selection of positions in each text."""

from typing import Any

from keras import ops

from keras_bert_zoo.checks import check_position


def at_positions(values: Any, positions: Any) -> Any:
    """Select positions of `[batch, ..., length, dim]`: an int, the same in each example, or int32 `[batch, n]`."""
    if isinstance(positions, int):
        check_position(output_positions=positions, length=values.shape[-2])
        return values[..., positions : positions + 1, :]
    # Select by a matmul with ones and zeros. Its gradient is also a matmul, not a scatter-add, whose order no backend
    # guarantees, and its shapes suit a TPU. It is exact where matmuls are, and otherwise rounds as other matmuls do.
    # `one_hot` is not used, as PyTorch would export it for one length only. The start is explicit, as jax2onnx 0.17
    # does not accept a stop alone.
    steps = ops.arange(0, ops.shape(values)[-2], dtype="int32")
    chosen = ops.cast(ops.expand_dims(positions, -1) == steps, values.dtype)
    return ops.matmul(chosen if len(values.shape) == 3 else chosen[:, None], values)


def count_of(positions: Any) -> int | None:
    """Return how many positions `at_positions` selects in each text, if known."""
    return 1 if isinstance(positions, int) else positions.shape[1]

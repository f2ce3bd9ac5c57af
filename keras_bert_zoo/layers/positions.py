"""Some positions of each text."""

from typing import Any

from keras import ops

from keras_bert_zoo.checks import check_position


def at_positions(values: Any, positions: Any) -> Any:
    """Some positions of `[batch, ..., length, dim]`: an int, the same of each example, or int32 `[batch, n]`."""
    if isinstance(positions, int):
        check_position(output_positions=positions, length=values.shape[-2])
        return values[..., positions : positions + 1, :]
    # A product with ones and zeros, whose gradient is a product again: no scattered sums, whose order no backend
    # promises, and shapes that a TPU likes. It is exact where products are; else it rounds as those beside it do.
    # Not `one_hot`, of which PyTorch would export one length only. From 0, as jax2onnx (0.17) has no stop alone.
    steps = ops.arange(0, ops.shape(values)[-2], dtype="int32")
    chosen = ops.cast(ops.expand_dims(positions, -1) == steps, values.dtype)
    return ops.matmul(chosen if len(values.shape) == 3 else chosen[:, None], values)


def count_of(positions: Any) -> int | None:
    """How many `at_positions` takes of each text, if that is known."""
    return 1 if isinstance(positions, int) else positions.shape[1]

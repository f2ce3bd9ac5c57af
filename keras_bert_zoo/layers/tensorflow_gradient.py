"""Custom gradients in TensorFlow functions; imported on that backend only."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

try:
    from tensorflow.python.eager.record import (
        could_possibly_record,
        record_operation,
        should_record_backprop,
        stop_recording,
    )
except ImportError:  # These are private, and training also works without them.
    record_operation = None


def takes_gradients() -> bool:
    """Whether `with_gradient` can be called: a function is traced, and TensorFlow lets us record a gradient."""
    return record_operation is not None and tf.inside_function()


def has_tape() -> bool:
    """Whether a tape records what this thread computes; unknown counts as none."""
    return record_operation is not None and could_possibly_record()


def with_gradient(compute: Callable[..., Any], gradient: Callable[[Any], Any], inputs: Sequence[Any]) -> Any:
    """Return `compute(*inputs)`, one tensor; `gradient` computes the gradients of all inputs from that of the output.

    `tf.custom_gradient` would keep each graph forever.
    """
    if record_operation is None or not should_record_backprop(inputs):
        return compute(*inputs)
    with stop_recording():
        outputs = compute(*inputs)
    record_operation("Bert", [outputs], list(inputs), lambda outer: gradient(tf.convert_to_tensor(outer)))
    return outputs


def gradient_within_functions(kind: str) -> Callable[[Any], Any]:
    """Decorator: register an operation's gradient for functions that no tape has seen, taken from outside."""

    def register(gradient: Any) -> Any:
        with suppress(KeyError):  # This TensorFlow has one itself.
            tf.RegisterGradient(kind)(gradient)
        return gradient

    return register

"""A gradient of our own in TensorFlow's functions; imported on that backend alone."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

try:
    from tensorflow.python.eager.record import record_operation, should_record_backprop, stop_recording
except ImportError:  # TensorFlow promises nothing about these, and trains without them, too.
    record_operation = None


def takes_gradients() -> bool:
    """Whether `with_gradient` can be called: a function is drawn, by a TensorFlow that lets us say its gradient."""
    return record_operation is not None and tf.inside_function()


def with_gradient(compute: Callable[..., Any], gradient: Callable[[Any], Any], inputs: Sequence[Any]) -> Any:
    """`compute(*inputs)`, one tensor, of which `gradient` makes those of all inputs from its own.

    `tf.custom_gradient` would keep each graph for ever.
    """
    if not should_record_backprop(inputs):
        return compute(*inputs)
    with stop_recording():
        outputs = compute(*inputs)
    record_operation("Bert", [outputs], list(inputs), lambda outer: gradient(tf.convert_to_tensor(outer)))
    return outputs

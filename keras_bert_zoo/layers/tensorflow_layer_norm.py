"""TensorFlow's LayerNorm by oneDNN, which has no gradient; imported on that backend alone."""

from functools import cache
from typing import Any

import tensorflow as tf

_OPERATION = "_MklLayerNorm"  # Without a function in Python: TensorFlow's graph rewriter alone makes it.


def is_available(inputs: Any) -> bool:
    """Whether a function is drawn, of tokens as rows or in batches, on a TensorFlow that has the operation."""
    return tf.inside_function() and inputs.shape.rank in (2, 3) and inputs.dtype != tf.float64 and _is_known()


def layer_norm(inputs: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Over the last axis of `[batch, length, dim]` or `[rows, dim]`, in float32, as Keras computes it."""
    tensors = [tf.cast(tensor, tf.float32) for tensor in (inputs, gamma, beta)]
    value = tf.compat.v1.AttrValue
    attributes = {"T": value(type=tf.float32.as_datatype_enum), "epsilon": value(f=epsilon)}
    graph = tf.compat.v1.get_default_graph()
    (output,) = graph.create_op(_OPERATION, tensors, [tf.float32], attrs=attributes, name="layer_norm").outputs
    output.set_shape(inputs.shape)
    return tf.cast(output, inputs.dtype)


@cache
def _is_known() -> bool:
    """TensorFlow has it where it is built with oneDNN."""

    @tf.function(autograph=False)
    def normalised() -> Any:
        return layer_norm(tf.constant([[1.0, -1.0]]), tf.constant([2.0, 2.0]), tf.constant([1.0, 1.0]), 3.0)

    with tf.init_scope():
        try:
            return normalised().numpy().tolist() == [[2.0, 0.0]]
        except (tf.errors.OpError, ValueError, KeyError):
            return False

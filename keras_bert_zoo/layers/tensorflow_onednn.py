"""Operations of oneDNN that otherwise only TensorFlow's graph rewriter creates; imported on that backend only."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_value = tf.compat.v1.AttrValue


def operation(kind: str, inputs: Sequence[Any], shape: Any, **attributes: Any) -> Any:
    """Create an operation, which has no Python function, in the graph that is being traced; return its output.

    Args:
        kind: Its name in TensorFlow.
        inputs: Tensors of one dtype, which is also the output's.
        shape: The output's static shape, which TensorFlow does not infer.
        **attributes: Protocol buffers of the other attributes.
    """
    dtype = inputs[0].dtype
    attributes["T"] = _value(type=dtype.as_datatype_enum)
    graph = tf.compat.v1.get_default_graph()
    (output,) = graph.create_op(kind, list(inputs), [dtype], attrs=attributes, name=kind.strip("_")).outputs
    output.set_shape(shape)
    return output


def number(value: float) -> Any:
    return _value(f=value)


def count(value: int) -> Any:
    return _value(i=value)


def flag(value: bool) -> Any:
    return _value(b=value)


def name(value: str) -> Any:
    return _value(s=value.encode())


def names(*values: str) -> Any:
    return _value(list=_value.ListValue(s=[value.encode() for value in values]))


def computes(compute: Callable[[], Any], expected: Any) -> bool:
    """Whether TensorFlow has what `compute` uses, as builds with oneDNN do, for this processor."""
    with tf.init_scope():
        try:
            return tf.cast(tf.function(compute, autograph=False)(), tf.float32).numpy().tolist() == expected
        except (tf.errors.OpError, ValueError, KeyError):
            return False

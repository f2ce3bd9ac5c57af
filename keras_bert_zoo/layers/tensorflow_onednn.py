"""Operations of oneDNN that otherwise only TensorFlow's graph rewriter creates; imported on that backend only."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from keras_bert_zoo.on_cpu import on_cpu

PRODUCT, SOFTMAX, ROWS_PRODUCT = "_MklFusedBatchMatMulV2", "_MklSoftmax", "_MklNativeFusedMatMul"
# TensorFlow's rewriter marks most of the operations that it creates so.
CREATED = {"_kernel": "MklNameChangeOp"}


def operation(kind: str, inputs: Sequence[Any], shape: Any, **attributes: bool | int | float | str | tuple) -> Any:
    """Create an operation, which has no Python function, in the graph that is being traced; return its output.

    Args:
        kind: Its name in TensorFlow.
        inputs: Tensors of one dtype, which is also the output's.
        shape: The output's static shape, which TensorFlow does not infer.
        **attributes: Its other attributes.
    """
    dtype = inputs[0].dtype
    values = {name: _attribute(value) for name, value in attributes.items()}
    values["T"] = tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)
    graph = tf.compat.v1.get_default_graph()
    (output,) = graph.create_op(kind, list(inputs), [dtype], attrs=values, name=kind.strip("_")).outputs
    output.set_shape(shape)
    return output


def _attribute(value: Any) -> Any:
    make = tf.compat.v1.AttrValue
    if isinstance(value, tuple):
        return make(list=make.ListValue(s=[each.encode() for each in value]))
    if isinstance(value, str):
        return make(s=value.encode())
    return make(**{{bool: "b", int: "i", float: "f"}[type(value)]: value})


def product(left: Any, right: Any, scale: float, added: Any, transposed: bool = False) -> Any:
    """Return `left @ right * scale + added`, summed in float32 and rounded once, without a gradient.

    Args:
        left: `[a, b, n, k]`.
        right: `[a, b, k, m]`, or `[a, b, m, k]` if `transposed`.
        scale: A number, which is rounded to the dtype.
        added: Of four axes, broadcast to `[a, b, n, m]`.
        transposed: Whether `right` is read with its last two axes exchanged.
    """
    shape = [*left.shape[:-1], right.shape[-2 if transposed else -1]]
    inputs = [left, right, tf.constant(scale, left.dtype), added]
    fused = "Mul", "Add"
    return operation(PRODUCT, inputs, shape, adj_x=False, adj_y=transposed, num_args=2, fused_ops=fused, epsilon=0.0)


def softmax(scores: Any) -> Any:
    """Return the softmax over the last axis, computed in float32 and rounded once, without a gradient.

    It reads and writes bfloat16 itself. Between two casts it takes up to twice as long where rows are a multiple of 16
    values. In float32 it takes half to three quarters of the time of TensorFlow's own.
    """
    return operation(SOFTMAX, [scores], scores.shape, **CREATED)


def product_with_gelu(inputs: Any, kernel: Any, bias: Any) -> Any:
    """Return the exact GELU of `inputs @ kernel + bias`, of `[rows, m]`, `[m, n]` and `[n]`, without a gradient.

    oneDNN applies it to each tile of the product, so it costs next to nothing. TensorFlow's own takes half as long as
    the product. Its graph rewriter joins the two, but by default not on processors with AVX2 alone.
    """
    return _product_of_rows([inputs, kernel, bias], "GeluExact")


def product_with_sum(inputs: Any, kernel: Any, bias: Any, added: Any) -> Any:
    """Return `inputs @ kernel + bias + added`, of `[rows, m]`, `[m, n]`, `[n]` and `[rows, n]`, without a gradient.

    It is summed in float32 and rounded once.
    """
    return _product_of_rows([inputs, kernel, bias, added], "Add")


def _product_of_rows(inputs: list[Any], then: str) -> Any:
    shape, fused = [inputs[0].shape[0], inputs[1].shape[1]], ("BiasAdd", then)
    options = {"transpose_a": False, "transpose_b": False, "epsilon": 0.0, "leakyrelu_alpha": 0.0}
    return operation(ROWS_PRODUCT, inputs, shape, num_args=len(inputs) - 2, fused_ops=fused, **options, **CREATED)


def takes(inputs: Any) -> bool:
    """Whether `product` and `softmax` can be taken: on a CPU, in a function that is being traced."""
    return tf.inside_function() and on_cpu(inputs) and has_both(inputs.dtype)


@cache
def has_both(dtype: Any) -> bool:
    """Whether TensorFlow has both operations in this dtype, float32 or bfloat16, and this processor has the dtype.

    The softmax comes first: where oneDNN has no bfloat16, as on processors without AVX-512, it raises an error, but the
    product ends the process.
    """
    if dtype not in (tf.float32, tf.bfloat16):
        return False

    def a_softmax() -> Any:
        return softmax(tf.zeros([1, 4], dtype))

    def a_product() -> Any:
        left, right, added = (tf.constant([[value]], dtype) for value in ([[2.0, 3.0]], [[1.0], [2.0]], [[0.5]]))
        return product(left, right, 1.0, added)

    return computes(a_softmax, [[0.25] * 4]) and computes(a_product, [[[[8.5]]]])


@cache
def has_gelu() -> bool:
    """Whether TensorFlow has `product_with_gelu`."""

    def a_product() -> Any:
        return product_with_gelu(*map(tf.constant, ([[2.0, 3.0]], [[1.0, 0.0], [2.0, 0.0]], [92.0, 0.0])))

    return computes(a_product, [[100.0, 0.0]])


@cache
def has_sum(dtype: Any) -> bool:
    """Whether TensorFlow has `product_with_sum` in this dtype, which the processor has."""

    def a_product() -> Any:
        values = [[2.0, 3.0]], [[1.0, 0.0], [2.0, 0.0]], [92.0, 0.0], [[10.0, 4.0]]
        return product_with_sum(*(tf.constant(value, dtype) for value in values))

    return computes(a_product, [[110.0, 4.0]])


def computes(compute: Callable[[], Any], expected: Any) -> bool:
    """Whether `compute`, which uses an operation, runs here and returns what is expected.

    It does not in builds of TensorFlow without oneDNN, nor for who has switched oneDNN off.
    """
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        return False
    with tf.init_scope():
        try:
            return tf.cast(tf.function(compute, autograph=False)(), tf.float32).numpy().tolist() == expected
        except (tf.errors.OpError, ValueError, KeyError):
            return False

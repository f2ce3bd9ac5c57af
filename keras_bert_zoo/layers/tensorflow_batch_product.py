"""TensorFlow's products of queries, keys and values by oneDNN; imported on that backend only."""

from functools import cache, partial
from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers.passes import makes_outputs_alone, trains_here
from keras_bert_zoo.layers.tensorflow_gradient import gradient_within_functions, takes_gradients, with_gradient
from keras_bert_zoo.layers.tensorflow_onednn import CREATED, computes, operation
from keras_bert_zoo.on_cpu import on_cpu

try:
    from tensorflow.python.util import _pywrap_util_port as _port
except ImportError:  # It is private.
    _port = None

_OPERATION = "_MklBatchMatMulV2"


def is_available(tensor: Any) -> bool:
    """Whether `batch_product` is the better choice: in a step of this process, on a CPU, in float32.

    By default TensorFlow's graph rewriter makes the same operation, but not on processors with AVX2 alone. There
    TensorFlow's own code takes two to four times as long.
    """
    is_wanted = (trains_here() and takes_gradients()) or (makes_outputs_alone() and tf.inside_function())
    return is_wanted and tensor.dtype == tf.float32 and on_cpu(tensor) and not _is_rewritten() and _is_known()


def batch_product(left: Any, right: Any, transposed: bool) -> Any:
    """Return `left @ right` of `[a, b, n, k]` and `[a, b, k, m]`, or `[a, b, m, k]` if `transposed`."""
    gradient = partial(_gradient, left, right, transposed)
    return with_gradient(partial(_product, adj_y=transposed), gradient, [left, right])


def _product(left: Any, right: Any, adj_x: bool = False, adj_y: bool = False) -> Any:
    shape = [*left.shape[:-2], left.shape[-1 if adj_x else -2], right.shape[-2 if adj_y else -1]]
    return operation(_OPERATION, [left, right], shape, adj_x=adj_x, adj_y=adj_y, **CREATED)


def _gradient(left: Any, right: Any, transposed: bool, outer: Any) -> tuple[Any, Any]:
    if transposed:
        return _product(outer, right), _product(outer, left, adj_x=True)
    return _product(outer, right, adj_y=True), _product(left, outer, adj_x=True)


@gradient_within_functions(_OPERATION)
def _gradient_within_a_function(op: Any, outer: Any) -> Any:
    if op.get_attr("adj_x"):
        raise LookupError("A gradient of attention's products has no gradient of its own.")
    left, right = op.inputs
    return _gradient(left, right, op.get_attr("adj_y"), outer)


def _is_rewritten() -> bool:
    """Whether TensorFlow's graph rewriter takes oneDNN's operations, as on most processors."""
    return _port is None or _port.IsMklEnabled()


@cache
def _is_known() -> bool:
    def compute() -> Any:
        return _product(tf.constant([[[[2.0, 3.0]]]]), tf.constant([[[[1.0], [2.0]]]]))

    return computes(compute, [[[[8.0]]]])

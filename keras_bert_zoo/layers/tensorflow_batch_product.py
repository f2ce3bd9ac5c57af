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


def is_available(left: Any, right: Any) -> bool:
    """Whether `batch_product` is the better choice: in a step of this process, on a CPU, in float32.

    By default TensorFlow's graph rewriter makes the same operation, but not on processors with AVX2 alone. There
    TensorFlow's own code takes two to four times as long.
    """
    is_wanted = (trains_here() and takes_gradients()) or (makes_outputs_alone() and tf.inside_function())
    are_floats = left.dtype == right.dtype == tf.float32
    return is_wanted and are_floats and on_cpu(left) and not _is_rewritten() and _is_known()


def batch_product(left: Any, right: Any, adj_x: bool = False, adj_y: bool = False) -> Any:
    """Return `left @ right` of `[a, b, n, k]` and `[a, b, k, m]`.

    `left` is `[a, b, k, n]` with `adj_x`, and `right` `[a, b, m, k]` with `adj_y`.
    """
    gradient = partial(_gradient, left, right, adj_x, adj_y)
    return with_gradient(partial(_product, adj_x=adj_x, adj_y=adj_y), gradient, [left, right])


def _product(left: Any, right: Any, adj_x: bool = False, adj_y: bool = False) -> Any:
    shape = [*left.shape[:-2], left.shape[-1 if adj_x else -2], right.shape[-2 if adj_y else -1]]
    return operation(_OPERATION, [left, right], shape, adj_x=adj_x, adj_y=adj_y, **CREATED)


def _gradient(left: Any, right: Any, adj_x: bool, adj_y: bool, outer: Any) -> tuple[Any, Any]:
    """Return the gradients of both factors, which have gradients themselves."""
    of_left = batch_product(right, outer, adj_y, True) if adj_x else batch_product(outer, right, False, not adj_y)
    of_right = batch_product(outer, left, True, adj_x) if adj_y else batch_product(left, outer, not adj_x, False)
    return of_left, of_right


@gradient_within_functions(_OPERATION)
def _gradient_within_a_function(op: Any, outer: Any) -> Any:
    left, right = op.inputs
    return _gradient(left, right, op.get_attr("adj_x"), op.get_attr("adj_y"), outer)


def _is_rewritten() -> bool:
    """Whether TensorFlow's graph rewriter takes oneDNN's operations, as on most processors."""
    return _port is None or _port.IsMklEnabled()


@cache
def _is_known() -> bool:
    def compute() -> Any:
        return _product(tf.constant([[[[2.0, 3.0]]]]), tf.constant([[[[1.0], [2.0]]]]))

    return computes(compute, [[[[8.0]]]])

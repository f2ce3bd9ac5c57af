"""TensorFlow's softmax of bfloat16 by oneDNN, which has no gradient; imported on that backend only."""

from functools import cache
from typing import Any

import tensorflow as tf

from keras_bert_zoo.layers.passes import makes_outputs_alone
from keras_bert_zoo.layers.tensorflow_onednn import computes, name, operation
from keras_bert_zoo.on_cpu import on_cpu


def is_for(scores: Any) -> bool:
    """Whether `softmax` can be taken: on a CPU, in a step that is being traced and makes outputs alone."""
    is_half = makes_outputs_alone() and tf.inside_function() and scores.dtype == tf.bfloat16
    return is_half and on_cpu(scores) and _is_known()


def softmax(scores: Any) -> Any:
    """Return the softmax over the last axis, computed in float32 and rounded once.

    It reads and writes bfloat16 itself. Between two casts it takes up to twice as long where rows are a multiple of 16
    values.
    """
    # TensorFlow's rewriter marks the operations that it creates so.
    return operation("_MklSoftmax", [scores], scores.shape, _kernel=name("MklNameChangeOp"))


@cache
def _is_known() -> bool:
    return computes(lambda: softmax(tf.zeros([1, 4], tf.bfloat16)), [[0.25] * 4])

"""The end of both sub-layers of a block, from the matmul's bias to LayerNorm, as a kernel where there is one."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.parts import is_plain
from keras_bert_zoo.on_cpu import on_cpu


def fuses_sum_norm(owner: Any, parts: tuple[Any, ...], dropout: Any, hidden: Any, training: bool | None) -> bool:
    """Whether there are kernels for `owner.call`, and its parts do nothing that the kernels omit."""
    if keras.backend.backend() != "jax" or not training or on_cpu(hidden):
        return False
    from keras_bert_zoo.layers import jax_sum_norm

    if (dropout.rate and not dropout.draws_cheaply) or not jax_sum_norm.takes(hidden):
        return False
    return all(is_plain(owner, part, hidden) for part in (*parts, dropout))


def fused_sum_norm(hidden: Any, inputs: Any, dense: Any, dropout: Any, norm: Any) -> Any:
    """Return `norm(hidden + dropout(dense(inputs)))` in training, for three layers that are parts of the caller."""
    from keras_bert_zoo.layers.jax_sum_norm import sum_norm

    kernel, bias = dense.cast_weights(inputs)  # Keras casts inputs and weights only in a layer's call.
    product = ops.matmul(ops.cast(inputs, dense.compute_dtype), kernel)
    bias, gamma, beta = (ops.convert_to_tensor(weight, "float32") for weight in (bias, norm.gamma, norm.beta))
    key = dropout.seed_generator.next() if dropout.rate else None
    return sum_norm(hidden, product, bias, gamma, beta, norm.epsilon, dropout.rate, key)

"""The end of both sub-layers of a block, from the matmul's bias to LayerNorm, as a kernel where there is one."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.parts import is_plain
from keras_bert_zoo.layers.rows import from_rows, to_rows
from keras_bert_zoo.on_cpu import on_cpu


def fuses_sum_norm(owner: Any, parts: tuple[Any, ...], dropout: Any, hidden: Any, training: bool | None) -> bool:
    """Whether there are kernels for `owner.call`, and its parts do nothing that the kernels omit."""
    has_kernels = _for_training(hidden, dropout) if training else _for_outputs(hidden)
    return has_kernels and all(is_plain(owner, part, hidden) for part in (*parts, dropout))


def _for_training(hidden: Any, dropout: Any) -> bool:
    if keras.backend.backend() != "jax" or on_cpu(hidden):
        return False
    from keras_bert_zoo.layers import jax_sum_norm

    return (dropout.draws_cheaply or not dropout.rate) and jax_sum_norm.takes(hidden)


def _for_outputs(hidden: Any) -> bool:
    if keras.backend.backend() != "tensorflow":
        return False
    from keras_bert_zoo.layers.tensorflow_product import adds_sum

    return adds_sum(hidden)


def fused_sum_norm(hidden: Any, inputs: Any, dense: Any, dropout: Any, norm: Any) -> Any:
    """Return `norm(hidden + dropout(dense(inputs)))`, for three layers that are parts of the caller.

    Args:
        hidden: `[batch, length, hidden_dim]`.
        inputs: As `hidden`, but of the last axis that `dense` takes; may also be its rows.
    """
    kernel, bias = dense.cast_weights(inputs)  # Keras casts inputs and weights only in a layer's call.
    if keras.backend.backend() == "tensorflow":
        from keras_bert_zoo.layers.tensorflow_onednn import product_with_sum

        return from_rows(norm.call(product_with_sum(to_rows(inputs), kernel, bias, to_rows(hidden))), hidden)
    from keras_bert_zoo.layers.jax_sum_norm import sum_norm

    product = ops.matmul(ops.cast(inputs, dense.compute_dtype), kernel)
    bias, gamma, beta = (ops.convert_to_tensor(weight, "float32") for weight in (bias, norm.gamma, norm.beta))
    key = dropout.seed_generator.next() if dropout.rate else None
    return sum_norm(hidden, product, bias, gamma, beta, norm.epsilon, dropout.rate, key)

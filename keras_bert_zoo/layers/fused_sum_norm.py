"""What ends both halves of a block, from the product's bias to LayerNorm, in a kernel where there is one."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.parts import is_plain
from keras_bert_zoo.on_cpu import on_cpu


def fuses_sum_norm(owner: Any, parts: tuple[Any, ...], hidden: Any, training: bool | None) -> bool:
    """Whether there are such kernels for `owner.call`, and its parts are asked for nothing that they leave out."""
    if keras.backend.backend() != "jax" or not training or on_cpu(hidden):
        return False
    from keras_bert_zoo.layers import jax_sum_norm

    return jax_sum_norm.takes(hidden) and all(is_plain(owner, part, hidden) for part in parts)


def fused_sum_norm(hidden: Any, inputs: Any, dense: Any, dropout: Any, norm: Any) -> Any:
    """`norm(hidden + dropout(dense(inputs)))`, of three layers that are parts of whoever calls it, in training."""
    from keras_bert_zoo.layers.jax_sum_norm import sum_norm

    product = ops.matmul(inputs, dense.kernel)
    bias, gamma, beta = (ops.convert_to_tensor(weight, "float32") for weight in (dense.bias, norm.gamma, norm.beta))
    key = dropout.seed_generator.next() if dropout.rate else None
    return sum_norm(hidden, product, bias, gamma, beta, norm.epsilon, dropout.rate, key)

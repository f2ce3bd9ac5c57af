"""Dropout whose random numbers cost little."""

from typing import Any

import keras

from keras_bert_zoo.layers.parts import plain_part
from keras_bert_zoo.on_cpu import on_cpu

_DRAWS = 2**16


@plain_part
class Dropout(keras.layers.Dropout):
    """Keras' Dropout, on JAX and on the CPU of TensorFlow and PyTorch from 16 random bits a value.

    There Keras draws 32 or more for each, and PyTorch on AMD's processors one value after the other: a fifth of BERT's
    step in bfloat16. A rate is a whole number of 65,536ths so, 6,554 of them for 0.1, and what stays is divided by just
    that share, rounded to the dtype.
    """

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        dropped = round(self.rate * _DRAWS)
        if training and 0 < dropped < _DRAWS and self.seed is None and self.noise_shape is None:
            backend = keras.backend.backend()
            if backend == "jax":
                return _in_jax(inputs, dropped, self.seed_generator.next())
            if backend == "tensorflow" and on_cpu(inputs):
                return _in_tensorflow(inputs, dropped, self.seed_generator.next())
            if backend == "torch" and on_cpu(inputs):
                return _in_torch(inputs, dropped)
        return super().call(inputs, training=training)


def _in_jax(inputs: Any, dropped: int, key: Any) -> Any:
    import jax

    *rows, width = inputs.shape
    words = jax.random.bits(key, (*rows, -(-width // 2)), "uint32")  # As wide as the generator's own.
    draws = jax.lax.bitcast_convert_type(words, "uint16").reshape(*rows, -1)[..., :width]
    return jax.numpy.where(draws >= dropped, inputs * (_DRAWS / (_DRAWS - dropped)), 0)


def _in_tensorflow(inputs: Any, dropped: int, seed: Any) -> Any:
    import tensorflow as tf

    count = tf.size(inputs)
    words = tf.random.stateless_uniform([(count + 1) // 2], seed, None, None, tf.uint32)
    draws = tf.reshape(tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count], tf.shape(inputs))
    scaled = inputs * tf.constant(_DRAWS / (_DRAWS - dropped), inputs.dtype)
    return tf.where(draws >= tf.constant(dropped, tf.uint16), scaled, tf.zeros([], inputs.dtype))


def _in_torch(inputs: Any, dropped: int) -> Any:
    import torch

    count = inputs.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=inputs.device).random_(-(2**63), None)
    draws = words.view(torch.int16)[:count].view(inputs.shape)
    kept = (draws >= dropped - _DRAWS // 2).to(inputs.dtype)
    return inputs * kept.mul_(_DRAWS / (_DRAWS - dropped))

"""Dropout whose random numbers cost little."""

from functools import partial
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.layers.parts import plain_part
from keras_bert_zoo.on_cpu import on_cpu

_DRAWS = 2**16


@plain_part
class Dropout(keras.layers.Dropout):
    """Keras' Dropout, on JAX by a hash, and on the CPU of TensorFlow and PyTorch from 16 random bits a value.

    There Keras draws 32 or more for each, and PyTorch on AMD's processors one value after the other: a fifth of BERT's
    step in bfloat16. A rate is a whole number of 65,536ths so, 6,554 of them for 0.1, and what stays is divided by just
    that share, rounded to the dtype.
    """

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        dropped = round(self.rate * _DRAWS)
        if training and self.draws_cheaply:
            backend = keras.backend.backend()
            if backend == "jax":
                return _in_jax(inputs, self.rate, self.seed_generator.next())
            if backend == "tensorflow" and on_cpu(inputs):
                return _in_tensorflow(inputs, dropped, self.seed_generator.next())
            if backend == "torch":
                from keras_bert_zoo.layers.torch_product import is_traced

                if on_cpu(inputs) and not is_traced():  # A program draws numbers of its own.
                    return _in_torch(inputs, dropped)
                if not on_cpu(inputs) and is_traced():
                    return _in_program(inputs, self.rate)
        return super().call(inputs, training=training)

    @property
    def draws_cheaply(self) -> bool:
        """Whether a draw is not left to Keras: there is something to drop, and nobody has said how."""
        return 0 < round(self.rate * _DRAWS) < _DRAWS and self.seed is None and self.noise_shape is None


def _in_jax(inputs: Any, rate: float, key: Any) -> Any:
    import jax

    words = jax.random.bits(key, (2,), "uint32")  # The keys that Keras counts up are no random numbers.
    return drop_out(inputs, rate, jax.lax.iota("uint32", inputs.size).reshape(inputs.shape), *words)


def drop_out(values: Any, rate: float, places: Any, first: Any, second: Any) -> Any:
    """JAX' `values`, of which a share of `rate` is left out and the rest grown; a kernel's tile, too.

    Each one's draw is a hash of its place: murmur3's last steps with one word of the key before and one between them.

    JAX's own generator, of 20 rounds, takes five times as long on a CPU, and 7 ms more of 81 in a step of BERT base on
    an H200 (64 texts of 512 tokens). Places are counted in 32 bits: beyond 2**32 values draws repeat.

    Args:
        values: What is dropped out.
        rate: The share, to 2^-32.
        places: uint32, of the shape of `values`.
        first: uint32.
        second: uint32.
    """
    import jax

    word = partial(np.asarray, dtype="uint32")
    draws = places * word(0x9E3779B1) + first
    draws = (draws ^ (draws >> word(16))) * word(0x85EBCA6B)
    draws = ((draws ^ (draws >> word(13))) + second) * word(0xC2B2AE35)
    draws ^= draws >> word(16)
    return jax.numpy.where(draws >= jax.numpy.uint32(round(rate * 2**32)), values * (1 / (1 - rate)), 0)


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


def _in_program(inputs: Any, rate: float) -> Any:
    """Each value's draw is a hash of two random words, its row's and its column's, as in `torch_attention`.

    A compiled program makes each of Philox' ten rounds else, and a sum with dropout and LayerNorm takes three times as
    long as reading and writing it: 150 us for 32,768 tokens of 768 on an H200.
    """
    import torch

    def words(*shape: int) -> Any:
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=inputs.device)

    draws = (words(*inputs.shape[:-1], 1) ^ words(inputs.shape[-1])) * 0x7FEB352D
    draws = (draws ^ (draws >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)  # The sign does not move along.
    return torch.where(draws >= round(rate * 2**32) - 2**31, inputs * (1 / (1 - rate)), 0.0)

"""Dropout with cheap random numbers."""

from functools import partial
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.layers.parts import plain_part
from keras_bert_zoo.on_cpu import on_cpu

_DRAWS = 2**16
_LIMITS = 4096  # So many that few values share one, and a row of them for each call still costs little.


@plain_part
@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class Dropout(keras.layers.Dropout):
    """Keras' Dropout with cheaper random numbers.

    On JAX, and in PyTorch's compiled programs on a GPU, the numbers are a hash of the position, and the rate is exact
    to 2^-32.

    With TensorFlow and PyTorch on a CPU the numbers are one random byte per value. Keras samples 32 bits or more, and
    PyTorch on AMD processors samples one value at a time, which takes a fifth of BERT's step in bfloat16. With bytes
    the rate is a multiple of 2^-16 (6,554 of them for 0.1), and kept values are divided by exactly the share that is
    kept, rounded to the dtype.

    Each byte is compared with a limit. For 0.1 it should be 6,554 / 256 = 25.6, so of the 4,096 limits, drawn anew in
    each call, six tenths are 26 and the others 25. Every 4,096th value shares the same limit. Each value's rate is
    exact, but two values that share a limit are dropped together slightly more often than others: the probability is
    higher by at most 2^-18 (4e-6, where that of any two values is 0.01 at this rate).

    Under a TensorFlow strategy each replica drops different values. With Keras' own layer all replicas drop the
    same ones.
    """

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        if training and self.draws_cheaply:
            backend = keras.backend.backend()
            if backend == "jax":
                return _in_jax(inputs, self.rate, self.seed_generator.next())
            if backend == "tensorflow":
                seed = _of_replica(self.seed_generator.next())
                if on_cpu(inputs):
                    return _in_tensorflow(inputs, self._dropped, seed)
                return _stateless(inputs, self.rate, seed)
            if backend == "torch":
                from keras_bert_zoo.layers.torch_product import is_traced

                if on_cpu(inputs) and not is_traced():  # A graph has its own random numbers.
                    return _in_torch(inputs, self._dropped)
                if not on_cpu(inputs) and is_traced():
                    return _in_program(inputs, self.rate)
        return super().call(inputs, training=training)

    @property
    def _dropped(self) -> int:
        return round(self.rate * _DRAWS)

    @property
    def draws_cheaply(self) -> bool:
        """Whether this layer samples by itself and does not leave that to Keras.

        It does if there is something to drop, at a rate of at most 255/256 (a limit is one byte), and if neither a seed
        nor a noise shape is given.
        """
        return 0 < self._dropped <= 255 * 256 and self.seed is None and self.noise_shape is None


def _in_jax(inputs: Any, rate: float, key: Any) -> Any:
    import jax

    words = jax.random.bits(key, (2,), "uint32")  # Keras' keys count up and are not random.
    return drop_out(inputs, rate, jax.lax.iota("uint32", inputs.size).reshape(inputs.shape), *words)


def drop_out(values: Any, rate: float, places: Any, first: Any, second: Any) -> Any:
    """Zero a share `rate` of JAX `values` and scale up the rest; also works on a kernel's tile.

    Each value's random number is a hash of its place: the last steps of murmur3, with one word of the key added before
    and one between them. JAX's own generator has 20 rounds. It takes five times as long on a CPU, and 7 ms more of 81
    in a step of BERT base on an H200 (64 texts of 512 tokens). Places have 32 bits: beyond 2**32 values the numbers
    repeat.

    Args:
        values: The values.
        rate: Dropout rate, exact to 2^-32.
        places: uint32, of the shape of `values`.
        first: First word of the key, uint32.
        second: Second word of the key, uint32.
    """
    import jax

    word = partial(np.asarray, dtype="uint32")
    draws = places * word(0x9E3779B1) + first
    draws = (draws ^ (draws >> word(16))) * word(0x85EBCA6B)
    draws = ((draws ^ (draws >> word(13))) + second) * word(0xC2B2AE35)
    draws ^= draws >> word(16)
    return jax.numpy.where(draws >= jax.numpy.uint32(round(rate * 2**32)), values * (1 / (1 - rate)), 0)


def _of_replica(seed: Any) -> Any:
    """Return a seed that differs among replicas, each of which counts up its own copy of the generator's seed."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    number = tf.cast(context.replica_id_in_sync_group, seed.dtype)
    return seed + tf.stack([1_000_003 * number, tf.zeros_like(number)])


def _stateless(inputs: Any, rate: float, seed: Any) -> Any:
    import tensorflow as tf

    return tf.nn.experimental.stateless_dropout(inputs, rate, tf.cast(seed, "int32"))  # XLA wants int32.


def _in_tensorflow(inputs: Any, dropped: int, seed: Any) -> Any:
    import tensorflow as tf

    count, (first, second) = tf.size(inputs), divmod(dropped, 256)
    words = tf.random.stateless_uniform([1 - (-count // _LIMITS), _LIMITS // 4], seed, None, None, tf.uint32)
    draws = tf.reshape(tf.bitcast(words, tf.uint8), [-1, _LIMITS])
    limits = tf.constant(first, tf.uint8) + tf.cast(draws[0] < tf.constant(second, tf.uint8), tf.uint8)
    kept = tf.reshape(tf.reshape(draws[1:] >= limits, [-1])[:count], tf.shape(inputs))
    factor = tf.constant(_DRAWS / (_DRAWS - dropped), inputs.dtype)
    return inputs * tf.where(kept, factor, tf.zeros([], inputs.dtype))


def _in_torch(inputs: Any, dropped: int) -> Any:
    import torch

    count, (first, second) = inputs.numel(), divmod(dropped, 256)
    shape = 1 - (-count // _LIMITS), _LIMITS // 8
    words = torch.empty(shape, dtype=torch.int64, device=inputs.device).random_(-(2**63), None)
    draws = words.view(torch.uint8)
    limits = first + (draws[0] < second).to(torch.uint8)
    kept = (draws[1:] >= limits).view(-1)[:count].view(inputs.shape).to(inputs.dtype)
    return inputs * kept.mul_(_DRAWS / (_DRAWS - dropped))


def _in_program(inputs: Any, rate: float) -> Any:
    """Drop each value by a hash of two random words, its row's and its column's, as in `torch_attention`.

    Otherwise a compiled program would compute ten rounds of Philox, and a sum with dropout and LayerNorm would take
    three times as long as its memory accesses: 150 us for 32,768 tokens of width 768 on an H200.
    """
    import torch

    def words(*shape: int) -> Any:
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=inputs.device)

    draws = (words(*inputs.shape[:-1], 1) ^ words(inputs.shape[-1])) * 0x7FEB352D
    draws = (draws ^ (draws >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)  # The mask clears shifted sign bits.
    return torch.where(draws >= round(rate * 2**32) - 2**31, inputs * (1 / (1 - rate)), 0.0)

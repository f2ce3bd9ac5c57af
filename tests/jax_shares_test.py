"""JAX's kernels on several devices, each with a share and draws of its own; one process starts for both kinds."""

import keras
import pytest

from tests.helpers import on_devices

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own", allow_module_level=True)

SHARES = """
import jax, keras, numpy as np
from functools import partial
from keras_bert_zoo.layers import jax_attention, jax_kernels, jax_sum_norm
from tests import attention_oracle, jax_sum_norm_test as sums

key = jax.random.key(5)

batch, length, heads, dim, rate = 8, 20, 2, 16, 0.1
qkv, mask, gradient = attention_oracle.case(batch, length, heads, dim, True)
with keras.distribution.DataParallel().scope():
    assert (jax_kernels.is_divided(8), jax_kernels.is_divided(6)) == (True, False)
    attend = partial(jax_attention.attention, dropout=rate, key=key, interpret=True)
    step = jax.jit(lambda qkv, mask: jax.vjp(lambda qkv: attend(qkv, mask), qkv))
    outputs, backpropagate = step(*map(keras.ops.convert_to_tensor, (qkv, mask)))
    (gradients,) = backpropagate(jax.numpy.asarray(gradient, outputs.dtype))
assert len(outputs.sharding.device_set) == 4
words = [np.asarray(jax.random.bits(jax.random.fold_in(key, i), (2 * heads + 1, length), "uint32")) for i in range(4)]
drawn = [attention_oracle.is_kept(each[:-1].reshape(2, heads, length), each[-1], rate) for each in words]
found = np.asarray(outputs), np.asarray(gradients)
attention_oracle.assert_attention(qkv, mask, np.concatenate(drawn), rate, gradient, *found, 1e-6)

hidden, change, gradient, *weights = sums.case(8, 3, 16)
compute = partial(jax_sum_norm.sum_norm, epsilon=1e-12, dropout=rate, key=key, interpret=True)
with keras.distribution.DataParallel().scope():
    step = jax.jit(lambda *arrays: jax.vjp(compute, *arrays))
    outputs, backpropagate = step(*map(keras.ops.convert_to_tensor, (hidden, change, *weights)))
    gradients = backpropagate(jax.numpy.asarray(gradient))
assert len(outputs.sharding.device_set) == 4
kept = np.concatenate([sums.is_kept(jax.random.fold_in(key, i), rate, (2, 3, 16)) for i in range(4)])
expected = sums.oracle(hidden, change, gradient, *weights, kept, rate)
sums.assert_all_close((outputs, *gradients), expected, 3e-6)
"""


def test_each_of_several_devices_has_a_share_and_draws_of_its_own():
    on_devices(SHARES)

"""JAX' kernels of attention with dropout, interpreted, and lowered for a card that is not there."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers import SelfAttention
from tests.attention_oracle import CASES, assert_attention, case, is_kept
from tests.helpers import numpy

if keras.backend.backend() != "jax":
    pytest.skip("JAX' own", allow_module_level=True)

import jax

from keras_bert_zoo.layers import jax_attention

INTERPRETED = jax.default_backend() == "cpu"
DTYPES = {"float32": 1e-6, "float16": 1e-3} if INTERPRETED else {"float16": 1e-3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", CASES)
def test_the_kernels_compute_attention_and_its_gradient(sizes, dtype):
    batch, length, heads, dim, is_masked, rate = sizes
    qkv, mask, gradient = case(batch, length, heads, dim, is_masked)
    array, gradient = jax.numpy.asarray(qkv, dtype), jax.numpy.asarray(gradient, dtype)
    key = jax.random.key(5)
    words = np.asarray(jax.random.bits(key, (batch * heads + 1, length), "uint32"))

    def attend(array):
        return jax_attention.attention(array, mask, rate, key, INTERPRETED)

    outputs, backpropagate = jax.vjp(attend, array)
    (gradients,) = backpropagate(gradient)
    kept = is_kept(words[:-1].reshape(batch, heads, length), words[-1], rate)
    found = numpy(outputs), numpy(gradients)
    assert_attention(numpy(array), mask, kept, rate, numpy(gradient), *found, DTYPES[dtype])


@pytest.fixture
def taken(monkeypatch):
    """What a Hopper card would answer."""
    monkeypatch.setattr("keras_bert_zoo.layers.fused_attention.on_cpu", lambda tensor: False)
    monkeypatch.setattr(jax_attention, "takes", lambda qkv: True)


def program(layer):
    """A training step's, for a card."""

    def loss(hidden, mask):
        return layer(hidden, mask, training=True).astype("float32").sum()

    hidden, mask = jax.ShapeDtypeStruct((2, 200, 128), "bfloat16"), jax.ShapeDtypeStruct((2, 200), bool)
    return jax.jit(jax.grad(loss)).trace(hidden, mask).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("options, kernels", [({}, 2), ({"causal": True}, 0)])
def test_training_on_a_card_takes_them(options, kernels, wide, taken):
    layer = SelfAttention(128, 2, dropout=0.1, dtype="mixed_bfloat16", **options)
    layer.build((None, None, 128))
    with jax.enable_x64(wide):
        text = program(layer)
    assert text.count("__gpu$xla.gpu.triton") == kernels


SHARES = """
import jax, keras, numpy as np
from keras_bert_zoo.layers import jax_attention, jax_kernels
from tests.attention_oracle import assert_attention, case, is_kept

batch, length, heads, dim, rate = 8, 20, 2, 16, 0.1
qkv, mask, gradient = case(batch, length, heads, dim, True)
key = jax.random.key(5)
with keras.distribution.DataParallel().scope():
    assert (jax_kernels.is_divided(8), jax_kernels.is_divided(6)) == (True, False)
    step = jax.jit(lambda qkv, mask: jax.vjp(lambda qkv: jax_attention.attention(qkv, mask, rate, key, True), qkv))
    outputs, backpropagate = step(*map(keras.ops.convert_to_tensor, (qkv, mask)))
    (gradients,) = backpropagate(jax.numpy.asarray(gradient, outputs.dtype))
assert len(outputs.sharding.device_set) == 4
words = [np.asarray(jax.random.bits(jax.random.fold_in(key, i), (2 * heads + 1, length), "uint32")) for i in range(4)]
kept = np.concatenate([is_kept(each[:-1].reshape(2, heads, length), each[-1], rate) for each in words])
assert_attention(qkv, mask, kept, rate, gradient, np.asarray(outputs), np.asarray(gradients), 1e-6)
"""


def test_each_of_several_devices_has_a_share_and_draws_of_its_own():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    subprocess.run([sys.executable, "-c", SHARES], check=True, env={**os.environ, "XLA_FLAGS": flags})


def test_the_kernels_are_for_half_precision_on_hopper(monkeypatch):
    class Card:
        platform, compute_capability = "gpu", "9.0"

    def takes(dtype="bfloat16", dim=64):
        return jax_attention.takes(jax.ShapeDtypeStruct((2, 8, 3, 4, dim), dtype))

    monkeypatch.setattr(jax, "devices", lambda: [Card])
    assert takes()
    assert not takes(dtype="float32")
    assert not takes(dim=48)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        assert not takes()
    Card.compute_capability = "8.0"
    assert not takes()
    Card.platform = "tpu"
    assert not takes()

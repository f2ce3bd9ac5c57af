"""JAX's kernels of attention with dropout, interpreted, and lowered for a card that is not there."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers import SelfAttention
from keras_bert_zoo.on_cpu import on_cpu
from tests.attention_oracle import CASES, assert_attention, case, is_kept
from tests.helpers import numpy

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own", allow_module_level=True)

import jax

from keras_bert_zoo.layers import jax_attention

INTERPRETED = jax.default_backend() == "cpu"
DTYPES = {"float32": 1e-6, "float16": 1e-3} if INTERPRETED else {"float16": 1e-3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", CASES)
def test_the_kernels_compute_attention_and_its_gradient(sizes, dtype):
    batch, length, heads, dim, is_masked, rate = sizes
    qkv, mask, gradient = case(batch, length, heads, dim, is_masked)
    bias = np.random.default_rng(1).normal(size=(3, heads, dim)).astype("float32")
    array, gradient = jax.numpy.asarray(qkv, dtype), jax.numpy.asarray(gradient, dtype)
    key = jax.random.key(5)
    words = np.asarray(jax.random.bits(key, (batch * heads + 1, length), "uint32"))

    def attend(array, bias):
        return jax_attention.attention(array, mask, rate, key, bias, INTERPRETED)

    outputs, backpropagate = jax.vjp(attend, array, bias)
    gradients, of_bias = backpropagate(gradient)
    kept = is_kept(words[:-1].reshape(batch, heads, length), words[-1], rate)
    found = numpy(outputs), numpy(gradients)
    assert_attention(numpy(array) + bias, mask, kept, rate, numpy(gradient), *found, DTYPES[dtype])
    whole = numpy(gradients).astype("float64").sum((0, 1))
    np.testing.assert_allclose(numpy(of_bias), whole, atol=DTYPES[dtype] * np.abs(whole).max())


@pytest.fixture
def taken(monkeypatch):
    """What a Hopper card would answer."""
    monkeypatch.setattr("keras_bert_zoo.layers.fused_attention.on_cpu", lambda tensor: False)
    monkeypatch.setattr(jax_attention, "takes", lambda qkv: True)


def program(layer):
    """Return the program of a training step, for a card."""

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


def test_a_layer_in_half_precision_by_itself(taken, monkeypatch):
    """Keras' `__call__`, which casts what layers are given, is left out; the kernels look at dtypes themselves."""
    layer = SelfAttention(32, 2, dropout=0.1, dtype="mixed_bfloat16")
    layer.build((2, 9, 32))
    layer.qkv.bias.assign(np.ones(96))
    monkeypatch.setattr(jax_attention, "takes", lambda qkv: qkv.dtype == "bfloat16")
    biases = []

    def attention(qkv, mask, dropout, key, bias):
        biases.append(numpy(bias.astype("float32")))
        return qkv[:, :, 2]

    monkeypatch.setattr(jax_attention, "attention", attention)
    values = ([variable.value for variable in variables] for variables in
              (layer.trainable_variables, layer.non_trainable_variables))  # fmt: skip
    layer.stateless_call(*values, jax.numpy.ones((2, 9, 32), "bfloat16"), training=True)
    np.testing.assert_array_equal(biases, np.ones((1, 3, 2, 16)))


@pytest.mark.parametrize("lora", [False, True])
def test_a_layer_trains_with_them_as_without(lora, taken, monkeypatch):
    def attention(qkv, mask, dropout, key, bias):
        assert bias is not None
        return kernels(qkv, mask, 0.0, key, bias, INTERPRETED)

    kernels = jax_attention.attention
    layer = SelfAttention(32, 2, dropout=0.1, dtype="float32" if INTERPRETED else "mixed_float16")
    layer.build((2, 9, 32))
    layer.qkv.bias.assign(np.random.default_rng(1).normal(size=96))
    if lora:
        layer.qkv.enable_lora(2)
        layer.qkv.lora_kernel_b.assign(np.ones((2, 96)))
    hidden, mask = np.random.default_rng(0).normal(size=(2, 9, 32)).astype("float32"), np.arange(9) < [[9], [5]]
    weights = [weight.value for weight in layer.trainable_variables]
    state = [variable.value for variable in layer.non_trainable_variables]

    def loss(weights):
        outputs, _ = layer.stateless_call(weights, state, hidden, mask, training=True)
        return (outputs * jax.numpy.cos(jax.numpy.arange(outputs.size).reshape(outputs.shape))).sum()

    monkeypatch.setattr(jax_attention, "attention", attention)
    found = jax.jit(jax.grad(loss))(weights)
    layer.dropout_layer.rate = 0.0
    monkeypatch.setattr("keras_bert_zoo.layers.attention.fused_attention_pays", lambda *_: False)
    for one, other in zip(found, jax.jit(jax.grad(lambda weights: loss(weights)))(weights), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(np.asarray(other)).max())


def test_the_default_device_decides_what_is_on_a_cpu(monkeypatch):
    class Card:
        platform = "gpu"

    (cpu,) = jax.devices("cpu")[:1]
    monkeypatch.setattr(jax, "devices", lambda platform=None: [cpu if platform == "cpu" else Card])
    assert not on_cpu(None)
    for chosen in (cpu, "cpu"):
        with jax.default_device(chosen):
            assert on_cpu(None)


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

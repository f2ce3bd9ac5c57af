"""A part of a layer computes what a call of Keras' computes, and is called so wherever that does something."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers import EncoderLayer
from keras_bert_zoo.layers.dense import Dense
from keras_bert_zoo.layers.parts import call_part
from tests.helpers import numpy, randomise

torch_only = pytest.mark.skipif(keras.backend.backend() != "torch", reason="Elsewhere each call is Keras'.")
HIDDEN = np.random.default_rng(2).normal(size=(3, 5, 8)).astype("float32")


class Owner(keras.layers.Layer):
    def __init__(self, part, **kwargs):
        super().__init__(**kwargs)
        self.part = part

    def build(self, shape):
        self.part.build(shape)

    def call(self, x):
        return call_part(self, self.part, x)


@pytest.fixture
def calls(monkeypatch):
    """The names of the layers that Keras' own call reaches."""
    names, call = [], keras.layers.Layer.__call__
    monkeypatch.setattr(
        keras.layers.Layer,
        "__call__",
        lambda layer, *inputs, **options: (names.append(layer.name), call(layer, *inputs, **options))[1],
    )
    return names


def owner_of(part_dtype="float32", dtype="float32"):
    owner = Owner(Dense(4, dtype=part_dtype, name="part"), dtype=dtype, name="owner")
    owner.build(HIDDEN.shape)
    randomise(owner)
    return owner


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("part_dtype", ["float32", "bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_of_any_precision(part_dtype, dtype):
    owner = owner_of(part_dtype, dtype)
    kernel, bias = (numpy(weight).astype("float64") for weight in owner.part.weights)
    output = owner(HIDDEN)
    assert keras.backend.standardize_dtype(output.dtype) == owner.part.compute_dtype
    exact = part_dtype == dtype == "float32"
    np.testing.assert_allclose(numpy(output), HIDDEN @ kernel + bias, atol=1e-5 if exact else 0.06, rtol=0.02)
    if not exact:  # In lower precision it would not be as close.
        assert np.abs(numpy(output) - (HIDDEN @ kernel + bias)).max() > 1e-5


@torch_only
def test_keras_calls_a_block_once(calls):
    layer = EncoderLayer(8, 2, 16, name="block")
    for training in (False, True):
        layer(HIDDEN, training=training)
        assert calls == ["block"]
        calls.clear()


@torch_only
@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_hooks_run(hook, calls):
    owner, seen = owner_of(), []
    getattr(owner.part, hook)(lambda module, *values: seen.append(module.name))
    owner(keras.ops.convert_to_tensor(HIDDEN).requires_grad_()).sum().backward()
    assert (seen, calls) == (["part"], ["owner", "part"])


@torch_only
@pytest.mark.parametrize("part_dtype, dtype", [("mixed_bfloat16", "float32"), ("bfloat16", "mixed_bfloat16")])
def test_keras_calls_a_part_of_another_precision(part_dtype, dtype, calls):
    owner_of(part_dtype, dtype)(HIDDEN)
    assert calls == ["owner", "part"]


@torch_only
def test_keras_calls_a_quantized_and_a_rematerialised_part(calls):
    owner = owner_of()
    expected = numpy(owner(HIDDEN))
    owner.part.quantize("int8")
    calls.clear()
    np.testing.assert_allclose(numpy(owner(HIDDEN)), expected, atol=0.1)
    assert calls == ["owner", "part"]
    with keras.RematScope(mode="full"):
        owner = owner_of()
    calls.clear()
    owner(HIDDEN)
    assert calls == ["owner", "part"]

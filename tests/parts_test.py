"""A part of a layer computes what Keras' call computes, and is called through Keras wherever that does more."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers import BertEmbeddings, EncoderLayer, SelfAttention
from keras_bert_zoo.layers.dense import Dense
from keras_bert_zoo.layers.parts import call_part
from keras_bert_zoo.models import BertBackbone
from tests.helpers import TINY, gradients, numpy, random_inputs, randomise

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
    """Return the names of the layers that Keras' own call reaches."""
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
    if not exact:  # The result in lower precision is not as close.
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


@pytest.mark.parametrize("way", [pytest.param("hook", marks=torch_only), "call"])
def test_who_looks_on_at_queries_keys_and_values_sees_them_where_one_position_is_read(way):
    layer, seen = SelfAttention(8, 2), []
    layer.build(HIDDEN.shape)
    if way == "hook":
        layer.qkv.register_forward_hook(lambda module, *values: seen.append(module.name))
    else:
        call = layer.qkv.call
        layer.qkv.call = lambda *inputs, **options: seen.append("qkv") or call(*inputs, **options)
    layer(HIDDEN, output_positions=0)
    assert set(seen) == {"qkv"}


@torch_only
@pytest.mark.parametrize("part_dtype, dtype", [("mixed_bfloat16", "float32"), ("bfloat16", "mixed_bfloat16")])
def test_keras_calls_a_part_of_another_precision(part_dtype, dtype, calls):
    owner_of(part_dtype, dtype)(HIDDEN)
    assert calls == ["owner", "part"]


@torch_only
def test_keras_calls_a_part_of_inputs_it_must_cast(calls):
    owner = owner_of("mixed_bfloat16", "mixed_bfloat16")
    assert call_part(owner, owner.part, keras.ops.convert_to_tensor(HIDDEN)).dtype == owner(HIDDEN).dtype
    assert calls == ["part", "owner"]
    owner.autocast = False
    halved = keras.ops.cast(HIDDEN, "bfloat16")  # Only the weights are left to cast.
    assert keras.backend.standardize_dtype(owner(halved).dtype) == "bfloat16"
    assert calls == ["part", "owner", "owner", "part"]


def test_a_dense_without_bias_and_one_called_outside_of_keras():
    exact = Dense(4, use_bias=False)
    exact.build(HIDDEN.shape)
    kernel = numpy(exact.kernel)
    np.testing.assert_allclose(numpy(exact(HIDDEN)), HIDDEN @ kernel, atol=1e-6)
    halved = keras.ops.cast(HIDDEN, "bfloat16")
    np.testing.assert_allclose(numpy(exact.call(halved)), numpy(keras.ops.cast(halved, "float32")) @ kernel, atol=1e-6)


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


@torch_only
@pytest.mark.parametrize("reason", ["regularized", "derived"])
def test_keras_calls_what_does_more_than_compute(reason, calls):
    class Derived(Dense):
        pass

    kind, regularizer = (Derived, None) if reason == "derived" else (Dense, keras.regularizers.L2(0.5))
    owner = Owner(kind(4, activity_regularizer=regularizer, name="part"), name="owner")
    output = numpy(owner(HIDDEN))
    assert calls == ["owner", "part"]
    if regularizer:
        np.testing.assert_allclose([numpy(loss) for loss in owner.losses], [0.5 * (output**2).sum() / 3], rtol=1e-5)


@pytest.mark.parametrize(
    "default, pattern, other",
    [
        ("mixed_bfloat16", ".*norm", "float32"),
        ("mixed_bfloat16", ".*attention", "float32"),
        ("mixed_float16", ".*output", "bfloat16"),
        ("float32", ".*intermediate", "mixed_bfloat16"),
        ("mixed_bfloat16", ".*token_embedding", "float32"),
        ("mixed_bfloat16", ".*attention/dropout", "float32"),
        ("mixed_bfloat16", ".*attention/qkv", "float32"),
    ],
)
@pytest.mark.parametrize("position", [None, 0])
def test_a_precision_for_each_part(default, pattern, other, position):
    inputs = random_inputs()

    def output(dtype):
        model = BertBackbone(**TINY, dtype=dtype)
        randomise(model)
        return numpy(model(inputs, output_positions=position)["sequence_output"]).astype("float32")

    precisions = keras.dtype_policies.DTypePolicyMap(default_policy=default)
    precisions[pattern] = keras.dtype_policies.DTypePolicy(other)
    exact, mixed = output("float32"), output(precisions)
    np.testing.assert_allclose(mixed, exact, atol=0.1)
    assert np.abs(mixed - exact).max() > 1e-4


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_gradients_of_mixed_precision_are_summed_in_float32(dtype):
    """A segment of 4,000 tokens: in half precision a sum stops growing once an addend is less than its last digit."""
    length = 4000
    inputs = {name: np.zeros((1, length), "int32") for name in ("token_ids", "segment_ids")}
    of_outputs = np.random.default_rng(1).normal(size=8).astype("float32")

    def of_weights(policy):
        layer = BertEmbeddings(7, 8, length, dropout=0.0, dtype=policy, name="embeddings")
        symbols = {name: keras.Input((length,), dtype="int32", name=name) for name in inputs}
        model = keras.Model(symbols, layer(**symbols))
        randomise(model)
        of_x = keras.ops.convert_to_tensor(of_outputs)
        return gradients(model, inputs, lambda x: keras.ops.sum(keras.ops.cast(x, "float32") * of_x))

    exact, mixed = of_weights("float32"), of_weights(dtype)
    for table in ("segment_embedding", "token_embedding"):
        expected = exact[f"embeddings/{table}/embeddings"]
        largest = np.abs(expected).max()
        assert largest > 2000
        np.testing.assert_allclose(mixed[f"embeddings/{table}/embeddings"], expected, atol=0.005 * largest)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_the_gradient_of_a_bias_is_summed_in_float32(dtype):
    inputs = np.random.default_rng(0).normal(size=(20_000, 4)).astype("float32")
    tokens = keras.Input((4,))
    model = keras.Model(tokens, Dense(2, dtype=dtype, name="dense")(tokens))
    found = gradients(model, inputs, lambda x: keras.ops.sum(keras.ops.cast(x, "float32")))
    np.testing.assert_allclose(found["dense/bias"], [20_000] * 2, rtol=0.002)
    if dtype == "mixed_bfloat16":  # With mixed_float16 losses are scaled.
        model.compile(keras.optimizers.SGD(1.0), loss=lambda _, x: keras.ops.sum(keras.ops.cast(x, "float32")))
        model.train_on_batch(inputs, np.zeros(20_000))
        np.testing.assert_allclose(numpy(model.layers[-1].bias), [-20_000] * 2, rtol=0.002)


@pytest.mark.parametrize("position", [0, None])
def test_a_block_adds_up_the_gradients_of_its_biases_in_float32(position):
    """The input is two thousand copies of one text of two tokens."""
    layer = EncoderLayer(8, 2, 8, dropout=0.0, attention_dropout=0.0, dtype="mixed_bfloat16", name="block")
    exact = EncoderLayer(8, 2, 8, dropout=0.0, attention_dropout=0.0, name="block")
    inputs = np.random.default_rng(0).normal(size=(1, 2, 8)).astype("float32").repeat(2000, axis=0)
    of_outputs = np.random.default_rng(1).normal(size=8).astype("float32")

    def biases(layer):
        symbol = keras.Input((2, 8))
        model = keras.Model(symbol, layer(symbol, output_positions=position))
        randomise(model)
        of_x = keras.ops.convert_to_tensor(of_outputs)
        found = gradients(model, inputs, lambda x: keras.ops.sum(keras.ops.cast(x, "float32") * of_x))
        return {name: value for name, value in found.items() if name.endswith("bias")}

    expected, found = biases(exact), biases(layer)
    assert len(found) == 4
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], atol=0.02 * np.abs(expected[name]).max(), err_msg=name)


def test_the_pooler_does_so_too():
    tokens = np.tile([[2, 5, 3]], (2000, 1)).astype("int32")
    inputs = {"token_ids": tokens, "segment_ids": tokens * 0, "padding_mask": tokens * 0 + 1}

    def bias(dtype):
        model = BertBackbone(**TINY, dtype=dtype)
        randomise(model)
        pooled = keras.Model(model.inputs, model.output["pooled_output"])
        found = gradients(pooled, inputs, lambda x: keras.ops.sum(keras.ops.cast(x, "float32")))
        return next(value for name, value in found.items() if name.endswith("pooler/bias"))

    expected = bias("float32")
    np.testing.assert_allclose(bias("mixed_bfloat16"), expected, atol=0.03 * np.abs(expected).max())


def test_what_is_cut_from_a_backbone_is_saved(tmp_path):
    model = BertBackbone(**TINY)
    pooled = keras.Model(model.inputs, model.output["pooled_output"])
    pooled.save(tmp_path / "pooled.keras")
    loaded = keras.saving.load_model(tmp_path / "pooled.keras")
    tokens = np.array([[2, 5, 3]], "int32")
    inputs = {"token_ids": tokens, "segment_ids": tokens * 0, "padding_mask": tokens * 0 + 1}
    np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(pooled(inputs)))


def test_a_block_of_another_width_is_refused():
    layer = EncoderLayer(8, 2, 16, name="block")
    layer(HIDDEN)
    for called in (layer, layer.attention):
        with pytest.raises(ValueError, match=r"expected axis -1 .* to have value 8, .* shape \(3, 5, 6\)"):
            called(HIDDEN[..., :6])

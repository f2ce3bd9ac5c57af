"""Products with int8 kernels: Keras' numbers, by oneDNN where a CPU has it, else in float32."""

import importlib

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers.dense import Dense, TokenEmbedding
from keras_bert_zoo.layers.int8_sums import sums_in_float32
from keras_bert_zoo.layers.lora import AdaptableDense
from keras_bert_zoo.layers.passes import step_of_this_process
from tests.helpers import TINY, numpy, random_inputs, randomise

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(6, 16)).astype("float32") * np.array([[1], [1e-3], [100], [1], [1], [0]], "float32")

# Keras says so of Dropout.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")


@pytest.fixture(params=["onednn", "float32"] if BACKEND != "jax" else ["xla"])
def taken(request, monkeypatch):
    """Return the numbers of columns of the products that are ours; on JAX products are Keras'."""
    if BACKEND == "jax":
        return None
    ours = importlib.import_module(f"keras_bert_zoo.layers.{BACKEND}_int8")
    if request.param == "float32":
        monkeypatch.setattr(ours, "_has_int8", lambda: False)
    elif not ours._has_int8():
        pytest.skip("oneDNN has no exact product of int8 on this processor.")
    columns, product = [], ours.int8_product

    def noted(inputs, kernel, *rest):
        columns.append(kernel.shape[-1])
        return product(inputs, kernel, *rest)

    monkeypatch.setattr(ours, "int8_product", noted)
    return columns


def in_int8(rows, kernel, bias):
    """Transcribe Keras' formula: each row and each column has its own scale."""
    columns = np.float32(127) / (np.abs(kernel).max(0) + np.float32(1e-7))
    scales = np.float32(127) / (np.abs(rows).max(-1, keepdims=True) + np.float32(1e-7))
    left, right = np.round(rows * scales).astype(int), np.round(kernel * columns).astype(int)
    return (left @ right) / (scales * columns).astype("float64") + bias


def dense(units=8, kind=Dense, **options):
    layer = kind(units, **options)
    layer.build((None, ROWS.shape[-1]))
    randomise(layer)
    return layer


def predicted(layer, rows):
    """Return what the layer gives in a step that makes outputs alone."""
    if BACKEND == "torch":
        import torch

        with torch.no_grad():
            return numpy(layer(rows))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with step_of_this_process("outputs", compiled=False):
            return numpy(tf.function(layer, autograph=False)(tf.constant(rows)))
    return numpy(layer(rows))


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_product_is_that_of_the_formula(use_bias, taken):
    layer = dense(use_bias=use_bias)
    kernel, bias = numpy(layer.kernel), numpy(layer.bias) if use_bias else 0
    layer.quantize("int8")
    outputs = predicted(layer, ROWS)
    np.testing.assert_allclose(outputs, in_int8(ROWS, kernel, bias), rtol=1e-5, atol=1e-6)
    assert taken in ([8], None)


def test_largest_sums_are_exact(taken):
    """Processors without int8 products add pairs of them in int16, which these do not fit."""
    layer = dense(use_bias=False)
    layer.kernel.assign(np.ones((16, 8), "float32"))
    layer.quantize("int8")
    np.testing.assert_allclose(predicted(layer, np.full((3, 16), 2, "float32")), np.full((3, 8), 32), rtol=1e-6)
    np.testing.assert_allclose(predicted(layer, np.full((3, 16), -2, "float32")), np.full((3, 8), -32), rtol=1e-6)


def test_sums_beyond_what_float32_holds_are_exact():
    rows, kernel = RNG.integers(-128, 128, (5, 2_500)), RNG.integers(-128, 128, (2_500, 7))
    rows[0], kernel[:, 0] = -128, -128
    rows[1], kernel[:, 1], kernel[0, 1] = 127, 127, 126
    sums = numpy(sums_in_float32(keras.ops.cast(rows, "float32"), keras.ops.cast(kernel, "int8")))
    np.testing.assert_array_equal(sums, rows @ kernel)
    assert sums.dtype == "int32"
    assert sums[1, 1] % 2  # No float32 holds it.
    assert sums[1, 1] > 2**24


@pytest.mark.skipif(BACKEND == "jax", reason="XLA's product of int8 is Keras' there")
@pytest.mark.filterwarnings("ignore:(?s).*The use of `x.T`")  # Of Keras' own.
def test_the_table_of_words_read_backwards(taken, monkeypatch):
    model = randomise(kbz.BertMaskedLM(kbz.BertBackbone(**TINY)))
    inputs = random_inputs(5, 9) | {"mask_positions": np.tile(np.array([[1, 0, 1]], "int32"), (5, 1))}
    model.quantize("int8")
    found = model.predict(inputs, verbose=0)["mlm"]
    assert TINY["vocabulary_size"] in taken
    for kind, theirs in ((Dense, keras.layers.Dense), (TokenEmbedding, keras.layers.ReversibleEmbedding)):
        monkeypatch.setattr(kind, "quantized_call", theirs.quantized_call)
    model.compile()  # Traces anew.
    np.testing.assert_array_equal(found, model.predict(inputs, verbose=0)["mlm"])


@pytest.mark.skipif(BACKEND == "jax", reason="XLA's product of int8 is Keras' there")
@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_model_predicts_as_with_keras_own_products(dtype, from_file, taken, tmp_path, monkeypatch):
    backbone = randomise(kbz.BertBackbone(**TINY, dtype=dtype))
    model = kbz.BertTextClassifier(backbone, num_classes=3)
    inputs = random_inputs(5, 9)
    model.quantize("int8")
    if from_file:
        model.save(tmp_path / "int8.keras")
        model = keras.models.load_model(tmp_path / "int8.keras")
    found = model.predict(inputs, verbose=0)
    assert {TINY["intermediate_dim"], 3 * TINY["hidden_dim"]} <= set(taken)
    monkeypatch.setattr(Dense, "quantized_call", keras.layers.Dense.quantized_call)
    count = len(taken)
    model.compile()  # Traces anew.
    expected = model.predict(inputs, verbose=0)
    assert len(taken) == count
    if dtype == "float32":
        np.testing.assert_array_equal(found, expected)
    else:  # Keras computes scales and sums in bfloat16.
        np.testing.assert_allclose(found, expected, atol=0.05)


@pytest.mark.skipif(BACKEND == "jax", reason="XLA's product of int8 is Keras' there")
@pytest.mark.parametrize("reason", ["gradient", "factors", "quantizer"])
def test_who_multiplies_by_itself(reason, taken, monkeypatch):
    """Keras does where a gradient is wanted, LoRA adds to the product, or the rounding is another."""
    layer = dense(kind=AdaptableDense)
    if reason == "factors":
        layer.enable_lora(2)
    narrow = keras.quantizers.AbsMaxQuantizer(value_range=(-63, 63))
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=narrow)
    layer.quantize("int8", config=config if reason == "quantizer" else None)
    outputs = numpy(layer(ROWS)) if reason == "gradient" else predicted(layer, ROWS)
    assert taken == []
    monkeypatch.setattr(Dense, "quantized_call", keras.layers.Dense.quantized_call)
    np.testing.assert_array_equal(outputs, predicted(layer, ROWS))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Elsewhere GELU is the same in all steps")
def test_gelu_apart_from_a_product_is_computed_by_erf(taken):
    """TensorFlow's own is of erfc, which takes twice as long; but its graph rewriter joins it with a float product."""
    import tensorflow as tf

    backbone = randomise(kbz.BertBackbone(**TINY))
    backbone.quantize("int8")
    with step_of_this_process("outputs", compiled=False):
        graph = tf.function(backbone, autograph=False).get_concrete_function(random_inputs(2, 9)).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert (kinds.count("Erf"), kinds.count("Erfc")) == (TINY["num_layers"], 0)

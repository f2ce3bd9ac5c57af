"""JAX's kernels of a residual sum with dropout and LayerNorm, interpreted, and lowered for a card that is not there."""

from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import EncoderLayer
from tests.helpers import numpy

if keras.backend.backend() != "jax":
    pytest.skip("JAX's own", allow_module_level=True)

import jax

from keras_bert_zoo.layers import jax_sum_norm

INTERPRETED = jax.default_backend() == "cpu"
DTYPES = {"float32": 3e-6, "float16": 4e-3} if INTERPRETED else {"float16": 4e-3}


def case(batch, length, width):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(1, 2, (batch, length, width)).astype("float32") for _ in range(3)]
    return *arrays, *(rng.normal(1, 0.5, width).astype("float32") for _ in range(3))


def is_kept(key, rate, shape):
    """Return what `Dropout` keeps, by its hash in whole numbers."""
    first, second = (int(word) for word in np.asarray(jax.random.bits(key, (2,), "uint32")))
    kept = []
    for place in range(np.prod(shape)):
        draw = (place * 0x9E3779B1 + first) % 2**32
        draw = (draw ^ draw >> 16) * 0x85EBCA6B % 2**32
        draw = ((draw ^ draw >> 13) + second) * 0xC2B2AE35 % 2**32
        kept.append((draw ^ draw >> 16) >= round(rate * 2**32))
    return np.reshape(kept, shape)


def oracle(hidden, change, gradient, bias, gamma, beta, kept, rate):
    """Return the outputs and the five gradients, in float64: Ba et al. 2016, and the derivative by hand."""
    hidden, change, gradient, bias, gamma, beta = (
        array.astype("float64") for array in (hidden, change, gradient, bias, gamma, beta)
    )
    growth = kept / (1 - rate)
    total = hidden + (change + bias) * growth
    mean = total.mean(-1, keepdims=True)
    deviation = np.sqrt(((total - mean) ** 2).mean(-1, keepdims=True) + 1e-12)
    normal = (total - mean) / deviation
    of_normal = gradient * gamma
    along = (of_normal * normal).mean(-1, keepdims=True)
    to_sum = (of_normal - of_normal.mean(-1, keepdims=True) - normal * along) / deviation
    to_change = to_sum * growth
    sums = (array.sum((0, 1)) for array in (to_change, gradient * normal, gradient))
    return normal * gamma + beta, to_sum, to_change, *sums


def assert_all_close(found, expected, tolerance):
    assert len(found) == len(expected) == 6
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(numpy(one).astype("float64") / scale, other / scale, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes, rate", [((3, 5, 48), 0.25), ((2, 8, 64), 0.1), ((1, 7, 128), 0.0)])
def test_the_kernels_compute_layer_norm_of_the_sum_and_its_gradient(sizes, rate, dtype, monkeypatch):
    hidden, change, gradient, *weights = case(*sizes)
    monkeypatch.setitem(
        jax_sum_norm._BACKWARD, "programs", 4
    )  # Each has several blocks, the last has fewer rows or none.
    key = jax.random.key(5)
    rows = [jax.numpy.asarray(array, dtype) for array in (hidden, change, gradient)]
    compute = partial(jax_sum_norm.sum_norm, epsilon=1e-12, dropout=rate, key=key, interpret=INTERPRETED)
    outputs, backpropagate = jax.vjp(compute, *rows[:2], *weights)
    expected = oracle(*map(numpy, rows), *weights, is_kept(key, rate, sizes), rate)
    assert_all_close((outputs, *backpropagate(rows[2])), expected, DTYPES[dtype])


@pytest.fixture
def taken(monkeypatch):
    """What a Hopper card would answer."""
    monkeypatch.setattr("keras_bert_zoo.layers.fused_sum_norm.on_cpu", lambda tensor: False)
    monkeypatch.setattr(jax_sum_norm, "takes", lambda hidden: True)


@pytest.fixture
def interpreted(taken, monkeypatch):
    calls = []

    def sum_norm(*args):
        assert args[0].dtype == args[1].dtype
        calls.append(args[0].shape)
        return kernels(*args, interpret=INTERPRETED)

    kernels = jax_sum_norm.sum_norm
    monkeypatch.setattr(jax_sum_norm, "sum_norm", sum_norm)
    return calls


def outputs_and_gradients(layer, hidden, mask, **options):
    weights = [weight.value for weight in layer.trainable_variables]
    state = [variable.value for variable in layer.non_trainable_variables]

    def loss(weights, hidden):
        outputs, _ = layer.stateless_call(weights, state, hidden, mask, training=True, **options)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        return (outputs * jax.numpy.cos(jax.numpy.arange(outputs.size).reshape(outputs.shape))).sum(), outputs

    # One program is compiled in less time than its operations one by one.
    gradients, outputs = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(weights, hidden)
    return jax.tree.leaves((outputs, gradients))


TWO = {"output_positions": np.array([[1, 3], [0, 2]])}


@pytest.mark.parametrize(
    "options, dropout, recomputed",
    [
        ({}, 0.0, []),
        ({}, 0.3, []),
        (TWO, 0.3, []),
        ({"output_positions": 0}, 0.3, []),
        (TWO, 0.3, ["block"]),
        pytest.param({}, 0.3, ["block"], marks=pytest.mark.slow),
        pytest.param({"output_positions": 0}, 0.3, ["block"], marks=pytest.mark.slow),
    ],
)
def test_a_block_trains_with_them_as_without(options, dropout, recomputed, request):
    with keras.RematScope("list_of_layers", layer_names=recomputed):
        layer = EncoderLayer(48, 3, 64, dropout=dropout, attention_dropout=0.0, name="block")
    layer.build((2, 5, 48))
    hidden = jax.numpy.asarray(case(2, 5, 48)[0])
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5])
    expected = outputs_and_gradients(layer, hidden, mask, **options)
    calls = request.getfixturevalue("interpreted")
    found = outputs_and_gradients(layer, hidden, mask, **options)
    assert calls[:2] == [expected[0].shape] * 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())


@pytest.mark.parametrize("position", [None, 1])
def test_a_block_in_half_precision_by_itself(position, monkeypatch, request):
    """Keras' `__call__`, which casts what layers are given, is left out; the kernels look at dtypes themselves."""
    layer = EncoderLayer(64, 2, 64, dropout=0.0, attention_dropout=0.0, dtype="mixed_bfloat16")
    layer.build((2, 5, 64))
    for weight in layer.weights:
        if weight.name == "bias":
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    hidden = jax.numpy.asarray(case(2, 5, 64)[0], "bfloat16")
    values = [weight.value for weight in layer.trainable_variables], []

    def outputs():
        found = jax.jit(lambda: layer.stateless_call(*values, hidden, training=True, output_positions=position)[0])()
        return numpy(found.astype("float32"))

    expected = outputs()
    takes = jax_sum_norm.takes
    calls = request.getfixturevalue("interpreted")
    monkeypatch.setattr(jax_sum_norm, "takes", takes)
    monkeypatch.setattr(jax_sum_norm, "is_for_gpu", lambda dtype, batch: dtype == "bfloat16")
    found = outputs()
    assert len(calls) == 2
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_no_rows_at_all(interpreted):
    layer = EncoderLayer(48, 3, 64)
    layer.build((2, 5, 48))
    nowhere = np.zeros((2, 0), "int32")
    gradients = outputs_and_gradients(layer, jax.numpy.asarray(case(2, 5, 48)[0]), None, output_positions=nowhere)
    assert not any(np.any(gradient) for gradient in gradients)


def test_a_block_shows_its_probabilities_all_the_same(interpreted):
    layer = EncoderLayer(48, 3, 64, attention_dropout=0.0)
    layer.build((2, 5, 48))
    inputs = case(2, 5, 48)[0]
    _, scores = layer(inputs, training=True, return_attention_scores=True)
    assert len(interpreted) == 2
    _, expected = layer.attention(inputs, training=True, return_attention_scores=True)
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.parametrize("case_", ["prediction", "int8", "activity_regularizer", "recomputed", "own_call", "rate"])
def test_what_asks_for_more_is_computed_without_them(case_, interpreted):
    names = ["output_norm"] if case_ == "recomputed" else []
    with keras.RematScope("list_of_layers", layer_names=names):
        layer = EncoderLayer(48, 3, 64, dropout=1 - 1e-9 if case_ == "rate" else 0.1)
    layer.build((2, 5, 48))
    if case_ == "int8":
        layer.output_dense.quantize("int8")
    elif case_ == "activity_regularizer":
        layer.output_norm.activity_regularizer = keras.regularizers.L2(0.1)
    elif case_ == "own_call":
        layer.attention.call = layer.attention.call
    layer(case(2, 5, 48)[0], training=case_ != "prediction")
    assert not interpreted


def test_lora_is_part_of_the_product(interpreted):
    layer = EncoderLayer(48, 3, 64, dropout=0.0, attention_dropout=0.0)
    layer.build((2, 5, 48))
    layer.output_dense.enable_lora(2)
    layer.output_dense.lora_kernel_b.assign(np.ones((2, 48)))
    hidden = case(2, 5, 48)[0]
    found = layer(hidden, training=True)
    assert len(interpreted) == 2
    np.testing.assert_allclose(found, layer(hidden, training=False), atol=1e-5)


@pytest.mark.parametrize("wide", [False, True])
def test_training_on_a_card_takes_them(wide, taken):
    layer = EncoderLayer(128, 2, 256, dtype="mixed_bfloat16")
    layer.build((None, None, 128))

    def loss(hidden):
        return layer(hidden, training=True).astype("float32").sum()

    hidden = jax.ShapeDtypeStruct((2, 200, 128), "bfloat16")
    with jax.enable_x64(wide):
        text = jax.jit(jax.grad(loss)).trace(hidden).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 4


def test_the_kernels_are_for_half_precision_on_hopper(monkeypatch):
    class Card:
        platform, compute_capability = "gpu", "9.0"

    def takes(dtype="bfloat16", width=768):
        return jax_sum_norm.takes(jax.ShapeDtypeStruct((2, 8, width), dtype))

    monkeypatch.setattr(jax, "devices", lambda: [Card])
    assert takes()
    assert not takes(dtype="float32")
    assert not takes(width=4096)
    Card.compute_capability = "8.0"
    assert not takes()


def test_a_pretrainer_learns_with_them_what_it_learns_without(request):
    def losses():
        keras.utils.set_random_seed(0)
        model = kbz.BertPretrainer(kbz.BertBackbone(50, 1, 2, 16, 32))
        model.compile(kbz.AdamW(1e-2))
        ids = np.random.default_rng(0).integers(5, 50, (4, 8))
        inputs = {"token_ids": ids, "segment_ids": ids % 2, "padding_mask": ids > 7, "mask_positions": ids[:, :3] % 8}
        targets = {"mlm": ids[:, :3], "nsp": ids[:, 0] % 2}
        return [float(model.train_on_batch(inputs, targets)[0]) for _ in range(4)]

    expected = losses()
    calls = request.getfixturevalue("interpreted")
    np.testing.assert_allclose(losses(), expected, rtol=1e-4)
    assert calls

"""oneDNN's operations on TensorFlow, but for LayerNorm: their values, where they are used, and where not."""

import math
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers.attention import SelfAttention
from keras_bert_zoo.layers.dense import Dense
from keras_bert_zoo.layers.encoder import EncoderLayer
from keras_bert_zoo.layers.passes import step_of_this_process
from tests.helpers import TINY, assert_rounded_once, random_inputs, randomise, run_python, tensorflow_nodes
from tests.helpers import tensorflow_operations as operations

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="They are TensorFlow's operations.")
needs_avx512 = pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists() or "avx512bw" not in Path("/proc/cpuinfo").read_text(),
    reason="oneDNN has bfloat16 with AVX-512 alone.",
)
PRODUCT, SOFTMAX, ROWS_PRODUCT = "_MklFusedBatchMatMulV2", "_MklSoftmax", "_MklNativeFusedMatMul"
POLICIES = {"bfloat16": "mixed_bfloat16", "float32": "float32"}
of_both = pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=needs_avx512), "float32"])
BLOCKS = TINY["num_layers"]
RNG = np.random.default_rng(4)


@pytest.fixture
def amx(monkeypatch):
    """Products are then made as with AMX; without it they run as well."""
    from keras_bert_zoo.layers import tensorflow_product

    monkeypatch.setattr(tensorflow_product, "_HAS_AMX", True)


def some(dtype, *shape):
    import tensorflow as tf

    return tf.cast(RNG.normal(size=shape), dtype)


def bfloat16(*shape):
    return some("bfloat16", *shape)


def wide(tensor):
    import tensorflow as tf

    return np.asarray(tf.cast(tensor, "float64"))


def dense():
    layer = Dense(6, dtype="mixed_bfloat16")
    layer.build((None, 40))
    return randomise(layer)


def counts(step, *arguments):
    kinds = operations(step, *arguments)
    return kinds.count(PRODUCT), kinds.count(SOFTMAX)


def joined(step, *arguments):
    """Return how many products of rows have a GELU in them, and how many a sum."""
    import tensorflow as tf

    nodes = tensorflow_nodes(tf.function(step), *arguments)
    parts = [node.attr["fused_ops"].list.s[1].decode() for node in nodes if node.op == ROWS_PRODUCT]
    return parts.count("GeluExact"), parts.count("Add")


def classifier(dtype="mixed_bfloat16"):
    backbone = kbz.BertBackbone(**TINY, dtype=dtype, dropout=0.0, attention_dropout=0.0)
    return randomise(kbz.BertTextClassifier(backbone, num_classes=2, dropout=0.0))


@needs_avx512
@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("kind", ["outputs", "training"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_product_is_rounded_once(kind, rows):
    """A product rounded before the bias is added would be off by up to twice as much."""
    import tensorflow as tf

    layer, x = dense(), bfloat16(rows, 40)
    function = tf.function(lambda inputs: layer(inputs))
    with step_of_this_process(kind, compiled=False):
        assert operations(function, x).count(PRODUCT) == 1
        output = function(x)
    kernel, bias = (tf.cast(weight.value, "bfloat16") for weight in layer.weights)
    exact = wide(x) @ wide(kernel) + wide(bias)
    assert (output.dtype, output.shape) == ("bfloat16", (rows, 6))
    assert_rounded_once(wide(output), exact)


@needs_avx512
@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("nested", [False, True])
def test_the_gradients_are_numpys(nested):
    """Also of a function that is differentiated from outside, as a recomputed block is."""
    import tensorflow as tf

    layer, x, outer = dense(), bfloat16(5, 40), bfloat16(5, 6)
    call = tf.function(lambda inputs: layer(inputs)) if nested else layer

    @tf.function
    def step(x, outer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = call(x)
        return tape.gradient(output, [x, layer.kernel.value, layer.bias.value], outer)

    with step_of_this_process("training", compiled=False):
        assert operations(step, x, outer).count(PRODUCT) >= 1
        found = step(x, outer)
    kernel = wide(tf.cast(layer.kernel.value, "bfloat16"))
    expected = wide(outer) @ kernel.T, wide(x).T @ wide(outer), wide(outer).sum(0)
    for gradient, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(wide(gradient), exact, atol=2.0**-8 * np.abs(exact).max())


@of_both
@pytest.mark.parametrize("length", [6, 16])
def test_the_softmax_is_rounded_once(dtype, length):
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_onednn import softmax

    scores = tf.where(RNG.random((2, 2, 3, length)) < 0.2, tf.constant(-1e30, dtype), some(dtype, 2, 2, 3, length))
    powers = np.exp(wide(scores) - wide(scores).max(-1, keepdims=True))
    exact = powers / powers.sum(-1, keepdims=True)
    close = 2.0**-8 * 1.001 if dtype == "bfloat16" else 1e-6
    np.testing.assert_allclose(wide(tf.function(softmax)(scores)), exact, rtol=close, atol=1e-6)


@of_both
@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize(
    "shape, causal, padded, places",
    [
        ((2, 7, 16), False, True, None),
        ((2, 7, 16), True, False, [[0, 3], [6, 1]]),
        ((None, None, 16), True, True, None),
        ((None, None, 16), False, False, None),
        ((None, None, 16), False, True, [[0, 3], [6, 1]]),
    ],
)
def test_scores_are_scaled_and_masked_within_their_product(dtype, shape, causal, padded, places):
    """TensorFlow's rewriter would do so for some shapes only."""
    import tensorflow as tf

    layer = SelfAttention(16, 2, causal=causal, dtype=POLICIES[dtype])
    layer.build(shape)
    randomise(layer)
    hidden = some(dtype, 2, 7, 16)
    options = {"output_positions": None if places is None else tf.constant(places), "return_attention_scores": True}
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3]) if padded else None
    function = tf.function(lambda inputs: layer(inputs, mask, **options), [tf.TensorSpec(shape, hidden.dtype)])
    output, scores = (wide(each) for each in layer(hidden, mask, **options))
    with step_of_this_process("outputs", compiled=False):
        assert counts(function) == (3 if dtype == "bfloat16" else 1, 1)  # Two products are with weights.
        found = [wide(each) for each in function(hidden)]
    close = 0.01 if dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(found[0], output, atol=2 * close * np.abs(output).max())
    np.testing.assert_allclose(found[1], scores, atol=close)
    if padded:
        assert not found[1][1, ..., 4:].any()


@of_both
@pytest.mark.usefixtures("amx")
def test_of_no_texts_there_are_no_scores(dtype):
    import tensorflow as tf

    layer = SelfAttention(16, 2, dtype=POLICIES[dtype])
    layer.build((None, None, 16))
    with step_of_this_process("outputs", compiled=False):
        assert tf.function(lambda inputs: layer(inputs))(some(dtype, 0, 7, 16)).shape == (0, 7, 16)


@needs_avx512
@pytest.mark.usefixtures("amx")
def test_steps_have_them_and_the_same_outputs():
    """A block has four products, one with an activation, and one for scores; the pooler has one, too.

    The last block has none for query, key and value, as it attends at one position, where scores are float32, but its
    softmax is made alike.
    """
    import tensorflow as tf

    model, inputs, labels = classifier(), random_inputs(3), np.array([0, 1, 1])
    batch = {name: tf.constant(array) for name, array in inputs.items()}
    model.compile(keras.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    few, many = 4 * (BLOCKS - 1) + 2 + 1, 4 * (BLOCKS - 1) + 3 + 1
    predict, evaluate, train = (
        tf.function(lambda inputs: model.predict_step((inputs,))),
        tf.function(lambda *batch: model.test_step(batch)),
        tf.function(lambda *batch: model.train_step(batch)),
    )
    assert counts(predict, batch) == (few, BLOCKS)
    assert counts(evaluate, batch, tf.constant(labels)) == (few, BLOCKS)
    assert counts(train, batch, tf.constant(labels)) == (many, 0)
    plain = np.asarray(model(inputs))
    np.testing.assert_allclose(model.predict(inputs, verbose=0), plain, atol=0.03 * np.abs(plain).max())


def test_float32_steps_have_those_without_a_gradient():
    import tensorflow as tf

    model, inputs, labels = classifier("float32"), random_inputs(3), tf.constant([0, 1, 1])
    batch = {name: tf.constant(array) for name, array in inputs.items()}
    assert counts(tf.function(lambda inputs: model.predict_step((inputs,))), batch) == (BLOCKS - 1, BLOCKS)
    assert counts(tf.function(lambda inputs: model.test_step((inputs, labels))), batch) == (BLOCKS - 1, BLOCKS)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), model(inputs), atol=1e-5)
    model.compile(keras.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    assert counts(tf.function(lambda inputs: model.train_step((inputs, labels))), batch) == (0, 0)


@needs_avx512
@pytest.mark.usefixtures("amx")
def test_an_update_is_that_of_an_eager_model():
    updated = []
    for eager in (False, True):
        model = classifier()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=eager)
        before = model.get_weights()
        model.fit(random_inputs(3), np.array([0, 1, 1]), verbose=0)
        updated.append([new - old for new, old in zip(model.get_weights(), before, strict=True)])
    for graph, eager in zip(*updated, strict=True):
        np.testing.assert_allclose(graph, eager, atol=max(0.1 * np.abs(eager).max(), 1e-7))


@pytest.mark.usefixtures("amx")
@pytest.mark.parametrize("where", ["call", "xla", "xla training"])
def test_elsewhere_they_are_tensorflows(where):
    """A model's own call may be saved, and XLA does not know them."""
    import tensorflow as tf

    model = classifier()
    batch = {name: tf.constant(array) for name, array in random_inputs(3).items()}
    model.compile(keras.optimizers.SGD(0.1), loss=model.loss, jit_compile=where.startswith("xla"))
    model.optimizer.build(model.trainable_variables)
    steps = {
        "call": lambda inputs: model(inputs, training=False),
        "xla": lambda inputs: model.predict_step((inputs,)),
        "xla training": lambda inputs: model.train_step((inputs, tf.constant([0, 1, 1]))),
    }
    assert counts(tf.function(steps[where]), batch) == (0, 0)


@needs_avx512
@pytest.mark.parametrize("missing, found", [("AMX", (BLOCKS - 1, BLOCKS)), ("oneDNN", (0, 0))])
def test_what_is_missing_is_not_used(missing, found, monkeypatch):
    """Scores and probabilities do not need AMX; without oneDNN's operations both are float32."""
    import tensorflow as tf

    from keras_bert_zoo.layers import tensorflow_onednn, tensorflow_product

    monkeypatch.setattr(tensorflow_product, "_HAS_AMX", missing != "AMX")
    if missing == "oneDNN":
        monkeypatch.setattr(tensorflow_onednn, "has_both", lambda dtype: False)
    model, inputs = classifier(), random_inputs(3)
    batch = {name: tf.constant(array) for name, array in inputs.items()}
    step = tf.function(lambda inputs: model.predict_step((inputs,)))
    assert counts(step, batch) == found
    assert operations(step, batch).count("Softmax") == BLOCKS - found[1]
    plain = np.asarray(model(inputs))
    np.testing.assert_allclose(model.predict(inputs, verbose=0), plain, atol=0.03 * np.abs(plain).max())


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_product_with_gelu(rows):
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_onednn import product_with_gelu

    x, kernel, bias = (RNG.normal(size=size).astype("float32") for size in ((rows, 40), (40, 6), (6,)))
    exact = x.astype("float64") @ kernel + bias
    exact *= [[0.5 * math.erfc(-value / math.sqrt(2)) for value in row] for row in exact] if rows else 1
    output = tf.function(product_with_gelu)(x, kernel, bias)
    assert (output.dtype, output.shape) == ("float32", (rows, 6))
    np.testing.assert_allclose(output, exact, atol=1e-5)


@of_both
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_the_product_with_a_sum(dtype, rows):
    """It is rounded once, and leaves what is added as it was."""
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_onednn import product_with_sum

    tensors = [some(dtype, *size) for size in ((rows, 40), (40, 6), (6,), (rows, 6))]
    x, kernel, bias, added = map(wide, tensors)
    output = tf.function(product_with_sum)(*tensors)
    assert (output.dtype, output.shape) == (dtype, (rows, 6))
    if dtype == "bfloat16":
        assert_rounded_once(wide(output), x @ kernel + bias + added)
    else:
        np.testing.assert_allclose(output, x @ kernel + bias + added, atol=1e-5)
    np.testing.assert_array_equal(wide(tensors[3]), added)


@of_both
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("places", [None, [[0, 3], [6, 1]]])
def test_sums_are_part_of_the_products_where_outputs_are_predicted(dtype, causal, places, monkeypatch):
    import tensorflow as tf

    from keras_bert_zoo.layers import tensorflow_product

    monkeypatch.setattr(tensorflow_product, "_HAS_AMX", False)
    layer = EncoderLayer(16, 2, 24, causal=causal, dtype=POLICIES[dtype])
    layer.build((None, None, 16))
    randomise(layer)
    hidden, mask = some(dtype, 2, 7, 16), np.array([[1] * 7, [1] * 4 + [0] * 3])
    options = {"output_positions": None if places is None else tf.constant(places), "return_attention_scores": True}

    def call(inputs):
        return layer(inputs, mask, **options)

    with step_of_this_process("outputs", compiled=False):
        assert joined(call, hidden)[1] == 2
        found = tf.function(call)(hidden)
    close = 0.02 if dtype == "bfloat16" else 1e-5
    for new, old in zip(found, call(hidden), strict=True):
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        np.testing.assert_allclose(wide(new), wide(old), atol=close * np.abs(wide(old)).max())


@of_both
def test_sums_are_part_of_steps_for_outputs_alone(dtype, monkeypatch):
    import tensorflow as tf

    from keras_bert_zoo.layers import tensorflow_onednn, tensorflow_product

    monkeypatch.setattr(tensorflow_product, "_HAS_AMX", False)
    model, labels = classifier(POLICIES[dtype]), tf.constant([0, 1, 1])
    batch = {name: tf.constant(array) for name, array in random_inputs(3).items()}
    model.compile(keras.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)

    def predict(inputs):
        return model.predict_step((inputs,))

    for step, found in (
        (predict, 2 * BLOCKS),
        (lambda inputs: model.test_step((inputs, labels)), 2 * BLOCKS),
        (lambda inputs: model.train_step((inputs, labels)), 0),
        (model, 0),
    ):
        assert joined(step, batch)[1] == found
    model.backbone.encoder_layers[0].output_norm.activity_regularizer = keras.regularizers.L2(0.1)
    assert joined(predict, batch)[1] == 2 * BLOCKS - 2
    if dtype == "bfloat16":  # In float32 there is nothing that AMX would do better.
        monkeypatch.setattr(tensorflow_product, "_HAS_AMX", True)
        assert joined(predict, batch)[1] == 0
        monkeypatch.setattr(tensorflow_product, "_HAS_AMX", False)
    monkeypatch.setattr(tensorflow_onednn, "has_sum", lambda dtype: False)
    assert joined(predict, batch)[1] == 0


def test_gelu_is_part_of_the_product_where_outputs_are_predicted(monkeypatch):
    """In float32, whether or not TensorFlow's graph rewriter is at work."""
    import tensorflow as tf

    from keras_bert_zoo.layers import tensorflow_onednn

    inputs = random_inputs(3)
    batch, labels = {name: tf.constant(array) for name, array in inputs.items()}, tf.constant([0, 1, 1])

    def count(model, step):
        return joined(step, batch)[0]

    model = classifier("float32")
    model.compile(keras.optimizers.SGD(0.1))
    model.optimizer.build(model.trainable_variables)
    for step, found in (
        (lambda inputs: model.predict_step((inputs,)), BLOCKS),
        (lambda inputs: model.test_step((inputs, labels)), BLOCKS),
        (lambda inputs: model.train_step((inputs, labels)), 0),
        (model, 0),
    ):
        assert count(model, step) == found
    plain = np.asarray(model(inputs))
    np.testing.assert_allclose(model.predict(inputs, verbose=0), plain, atol=1e-5)
    model.backbone.encoder_layers[0].activation = "silu"
    assert count(model, lambda inputs: model.predict_step((inputs,))) == BLOCKS - 1
    other = classifier("bfloat16")
    assert count(other, lambda inputs: other.predict_step((inputs,))) == 0
    monkeypatch.setattr(tensorflow_onednn, "has_gelu", lambda: False)
    assert count(model, lambda inputs: model.predict_step((inputs,))) == 0


def test_gelu_is_part_of_the_head_s_product():
    import tensorflow as tf

    model = randomise(kbz.BertMaskedLM(kbz.BertBackbone(**TINY)))
    inputs = {**random_inputs(3), "mask_positions": np.array([[1, 2]] * 3, "int32")}
    batch = {name: tf.constant(array) for name, array in inputs.items()}
    assert joined(lambda inputs: model.predict_step((inputs,)), batch)[0] == BLOCKS + 1
    np.testing.assert_allclose(model.predict(inputs, verbose=0)["mlm"], model(inputs)["mlm"], atol=1e-5)


def test_without_bfloat16_in_onednn_the_process_lives():
    """As on a processor with AVX2 alone, where oneDNN's product of bfloat16 would end it."""
    script = "from keras_bert_zoo.layers.tensorflow_onednn import has_both, tf; print(has_both(tf.bfloat16))"
    assert run_python(script, ONEDNN_MAX_CPU_ISA="AVX2") == "False\n"


def test_onednn_can_be_switched_off(monkeypatch):
    import tensorflow as tf

    from keras_bert_zoo.layers.tensorflow_onednn import computes

    assert computes(lambda: tf.constant([2.0]), [2.0])
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert not computes(lambda: tf.constant([2.0]), [2.0])

"""The layers against NumPy transcriptions of the paper."""

import math

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import BertEmbeddings, EncoderLayer, SelfAttention, VocabularyBias, WeightedSum
from keras_bert_zoo.layers.activations import get_activation
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.layers.initializer import Normal
from keras_bert_zoo.layers.layer_norm import LayerNormalization
from keras_bert_zoo.layers.passes import weights_kept
from tests.helpers import TINY, check_saving, gradients, numpy, random_inputs, randomise

torch_only = pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's own way")
HIDDEN = np.random.default_rng(1).normal(size=(3, 9, 8)).astype("float32")
MASK = random_inputs()["padding_mask"]


def weights_of(layer):
    return {weight.path.split("/", 1)[1]: numpy(weight).astype("float64") for weight in layer.weights}


def attention_oracle(layer, hidden, mask, causal):
    """softmax(q k^T / sqrt(d) + mask) v for each head on its own (Vaswani et al. 2017, equation 1)."""
    w = weights_of(layer)
    qkv = hidden.astype("float64") @ w["qkv/kernel"] + w["qkv/bias"]
    query, key, value = np.split(qkv, 3, axis=-1)
    size = layer.head_dim
    outputs, probabilities = [], []
    for head in range(layer.num_heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[..., part] @ key[..., part].transpose(0, 2, 1) / math.sqrt(size)
        allowed = np.broadcast_to(mask[:, None, :] != 0, scores.shape)
        if causal:
            allowed = allowed & np.tril(np.ones(scores.shape[1:], bool))
        scores = np.where(allowed, scores, -np.inf)
        exp = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities.append(exp / exp.sum(-1, keepdims=True))
        outputs.append(probabilities[-1] @ value[..., part])
    return np.concatenate(outputs, -1) @ w["output/kernel"] + w["output/bias"], np.stack(probabilities, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
def test_attention_is_the_papers(causal, heads):
    layer = SelfAttention(8, heads, causal=causal, name="attention")
    layer.build(HIDDEN.shape)
    randomise(layer)
    expected, probabilities = attention_oracle(layer, HIDDEN, MASK, causal)
    fused = layer(HIDDEN, MASK)
    explicit, scores = layer(HIDDEN, MASK, return_attention_scores=True)
    np.testing.assert_allclose(numpy(fused), expected, atol=1e-5)
    np.testing.assert_allclose(numpy(explicit), expected, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), probabilities, atol=1e-6)
    for position in (0, 3):
        output, scores = layer(HIDDEN, MASK, output_positions=position, return_attention_scores=True)
        np.testing.assert_allclose(numpy(output)[:, 0], expected[:, position], atol=1e-5)
        np.testing.assert_allclose(numpy(scores)[:, :, 0], probabilities[:, :, position], atol=1e-6)


@torch_only
def test_functions_of_functions_see_through_the_product():
    """Each example's gradient by `torch.func` is the same as one computed by itself."""
    import torch

    from keras_bert_zoo.layers.torch_product import product

    generator = torch.Generator().manual_seed(0)
    inputs, kernel = torch.randn(5, 4, generator=generator), torch.randn(4, 3, generator=generator)

    def gradient(row):
        return torch.func.grad(lambda k: product(row[None], k).square().sum())(kernel)

    expected = torch.stack([2 * torch.outer(row, row @ kernel) for row in inputs])
    torch.testing.assert_close(torch.func.vmap(gradient)(inputs), expected)


@torch_only
@pytest.mark.parametrize("dtype, close", [("float32", 1e-5), ("mixed_bfloat16", 0.02)])
@pytest.mark.parametrize("length", [5, 20, 32, 130])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_predicts_as_the_papers(causal, masked, length, dtype, close):
    """On PyTorch's CPU, its spelling depends on length and dtype; bfloat16 products keep three digits."""
    import torch

    hidden = np.random.default_rng(0).normal(size=(2, length, 8)).astype("float32")
    mask = np.ones((2, length), "int32")
    mask[1, 3:] = not masked
    layer = SelfAttention(8, 4, causal=causal, dtype=dtype, name="attention")
    layer.build(hidden.shape)
    randomise(layer)
    expected, _ = attention_oracle(layer, hidden, mask, causal)
    with torch.no_grad():
        output = layer(hidden, mask if masked else None)
    assert keras.backend.standardize_dtype(output.dtype) == dtype.removeprefix("mixed_")
    np.testing.assert_allclose(numpy(output.float()), expected, atol=close * np.abs(expected).max())


@pytest.mark.parametrize("dtype, close", [("float32", 1e-6), ("mixed_bfloat16", 0.02), ("mixed_float16", 0.005)])
def test_layer_norm_is_the_papers(dtype, close):
    layer = LayerNormalization(epsilon=0.5, dtype=dtype)
    layer.build((2, 5, 8))
    randomise(layer)
    inputs = np.random.default_rng(1).normal(3, 0.5, (2, 5, 8))
    output = layer(inputs.astype("float32"))
    deviation = np.sqrt(inputs.var(-1, keepdims=True) + 0.5)
    gamma, beta = numpy(layer.gamma), numpy(layer.beta)
    expected = (inputs - inputs.mean(-1, keepdims=True)) / deviation * gamma + beta
    assert keras.backend.standardize_dtype(output.dtype) == dtype.removeprefix("mixed_")
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), expected, atol=close)


@torch_only
def test_kept_weights_have_gradients_and_end_with_their_pass():
    import torch

    layer = SelfAttention(8, 2, dtype="mixed_bfloat16", name="attention")
    layer.build(HIDDEN.shape)
    randomise(layer)
    with weights_kept():
        with torch.no_grad():
            before = layer(HIDDEN)
        layer(HIDDEN).sum().backward()
    assert all(weight.value.grad.abs().max() > 0 for weight in layer.weights if "kernel" in weight.name)
    for weight in layer.weights:
        weight.assign(2 * weight)
    with torch.no_grad():
        after = layer(HIDDEN)
    expected, _ = attention_oracle(layer, HIDDEN, np.ones_like(MASK), False)
    np.testing.assert_allclose(numpy(after.float()), expected, atol=0.02 * np.abs(expected).max())
    assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize("by_the_kernel", [False, pytest.param(True, marks=torch_only)])
def test_attention_dropout_drops_probabilities_and_keeps_their_mean(monkeypatch, by_the_kernel):
    monkeypatch.setattr("keras_bert_zoo.layers.fused_attention.drops_out", lambda qkv, causal: by_the_kernel)
    layer = SelfAttention(8, 2, dropout=0.5, name="attention")
    layer.build(HIDDEN.shape)
    randomise(layer)
    expected = numpy(layer(HIDDEN, MASK))
    drawn = np.stack([numpy(layer(HIDDEN, MASK, training=True)) for _ in range(600)])
    assert drawn.std(0).min() > 0
    error = (drawn.mean(0) - expected) / (drawn.std(0) / math.sqrt(600))
    assert np.abs(error).max() < 5


@pytest.mark.parametrize("position", [None, 3])
def test_where_attention_drops_a_token_out_it_drops_its_bias_too(position):
    """With equal scores and values of 1, a head's output is twice the share of tokens that are kept."""
    layer = SelfAttention(8, 2, dropout=0.5)
    layer.build(HIDDEN.shape)
    layer.qkv.set_weights([np.zeros((8, 24)), np.ones(24)])
    layer.output_dense.set_weights([np.eye(8), np.zeros(8)])
    heads = numpy(layer(HIDDEN, output_positions=position, training=True)).reshape(len(HIDDEN), -1, 2, 4)
    kept = heads[..., 0] * HIDDEN.shape[1] / 2
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-4)
    assert kept.std() > 0
    np.testing.assert_allclose(heads, heads[..., :1].repeat(4, -1), atol=1e-5)


def test_embeddings_are_the_normalised_sum_of_three():
    inputs = random_inputs()
    layer = BertEmbeddings(40, 8, max_sequence_length=16, layer_norm_epsilon=1e-2, name="embeddings")
    layer.build((None, None))
    w = weights_of(randomise(layer))
    x = (
        w["token_embedding/embeddings"][inputs["token_ids"]]
        + w["segment_embedding/embeddings"][inputs["segment_ids"]]
        + w["position_embedding/embeddings"][np.arange(9)]
    )
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-2)
    expected = x * w["layer_norm/gamma"] + w["layer_norm/beta"]
    np.testing.assert_allclose(numpy(layer(inputs["token_ids"], inputs["segment_ids"])), expected, atol=1e-5)


def test_activations_at_hand_worked_points():
    x = np.array([-2.0, -0.5, 0.0, 1.0, 3.0], "float32")
    erf = np.array([math.erf(value / math.sqrt(2)) for value in x])
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    np.testing.assert_allclose(numpy(get_activation("gelu")(x)), x * 0.5 * (1 + erf), atol=1e-6)
    for name in ("gelu_new", "gelu_pytorch_tanh"):
        np.testing.assert_allclose(numpy(get_activation(name)(x)), x * 0.5 * (1 + tanh), atol=1e-6)
    np.testing.assert_array_equal(numpy(get_activation("relu")(x)), np.maximum(x, 0))
    for name in ("silu", "swish"):
        np.testing.assert_allclose(numpy(get_activation(name)(x)), x / (1 + np.exp(-x)), atol=1e-6)
    np.testing.assert_allclose(numpy(get_activation("tanh")(x)), np.tanh(x), atol=1e-6)


class Gelu(keras.layers.Layer):
    def call(self, x):
        return get_activation("gelu", training=True)(x)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("mixed_bfloat16", 2**-7)])
def test_gelu_and_its_gradient_in_training(dtype, tolerance):
    """x Phi(x), and Phi(x) + x phi(x) (Hendrycks and Gimpel 2016); in half precision to the last digit but one."""
    x = np.linspace(-6, 6, 97, dtype="float32")
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in x])
    inputs = keras.Input((1,))
    dense = keras.layers.Dense(len(x), use_bias=False, dtype=dtype)
    model = keras.Model(inputs, Gelu(dtype=dtype)(dense(inputs)))
    model.set_weights([x[None]])  # With an input of one, these go into GELU; the gradient is also of them.
    one = np.ones((1, 1), "float32")
    np.testing.assert_allclose(numpy(model(one)).astype("float32")[0], x * below, atol=tolerance, rtol=tolerance)
    found = gradients(model, one, lambda y: keras.ops.sum(keras.ops.cast(y, "float32")))
    density = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(next(iter(found.values()))[0], below + x * density, atol=tolerance)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_half_precision_stays_finite_and_close(policy):
    layer = EncoderLayer(8, 2, 16, causal=True, dtype=policy)
    layer.build(HIDDEN.shape)
    randomise(layer)
    reference = EncoderLayer(8, 2, 16, causal=True)
    reference.build(HIDDEN.shape)
    reference.set_weights(layer.get_weights())
    # Rows of large and of tiny values: LayerNorm's variance and the mask must survive float16's range.
    hidden = HIDDEN * np.array([1.0, 100.0, 1e-3], "float32")[:, None, None]
    expected = numpy(reference(hidden, MASK))
    for scores in (False, True):
        output = layer(hidden, MASK, return_attention_scores=scores)
        output = numpy(output[0] if scores else output).astype("float32")
        tolerance = {"float32": 1e-5, "mixed_bfloat16": 0.15, "mixed_float16": 0.02}[policy]
        np.testing.assert_allclose(output, expected, atol=tolerance)


@pytest.mark.parametrize(
    "build",
    [
        lambda: SelfAttention(8, 2, dropout=0.3, causal=True, name="layer"),
        lambda: EncoderLayer(8, 2, 16, activation="relu", layer_norm_epsilon=1e-3, name="layer"),
    ],
)
def test_hidden_layers_save(build, tmp_path):
    def as_model(layer):
        hidden = keras.Input((None, 8))
        mask = keras.Input((None,), dtype="int32")
        return keras.Model([hidden, mask], layer(hidden, mask))

    check_saving(build, [HIDDEN, MASK], tmp_path, as_model)


def test_embeddings_save(tmp_path):
    def as_model(layer):
        ids, segments = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
        return keras.Model([ids, segments], layer(ids, segments))

    inputs = random_inputs()
    inputs = [inputs["token_ids"], inputs["segment_ids"]]
    check_saving(lambda: BertEmbeddings(40, 8, 16, 3, 0.2, 1e-5, 0.1, name="layer"), inputs, tmp_path, as_model)


@pytest.mark.parametrize("kind", [WeightedSum, VocabularyBias])
def test_layers_without_arguments_save_with_a_policy(kind, tmp_path):
    policy, inputs = keras.DTypePolicy("mixed_bfloat16"), keras.Input((None, 8))
    layer = kind(dtype=policy, name="layer")
    model = randomise(keras.Model(inputs, layer([inputs, 2 * inputs] if kind is WeightedSum else inputs)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (type(loaded.layers[-1]), loaded.layers[-1].dtype_policy) == (kind, policy)
    np.testing.assert_array_equal(*(numpy(each(HIDDEN)).astype("float32") for each in (loaded, model)))


def test_at_first_a_weighted_sum_is_the_mean_and_a_bias_is_zero():
    np.testing.assert_allclose(numpy(WeightedSum()([HIDDEN, 3 * HIDDEN])), 2 * HIDDEN, rtol=1e-6)
    np.testing.assert_array_equal(numpy(VocabularyBias()(HIDDEN)), HIDDEN)


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: SelfAttention(8, 3), "`num_heads` must divide `hidden_dim`"),
        (lambda: SelfAttention(8, 0), "`num_heads` must be a positive integer. Received: num_heads=0"),
        (lambda: SelfAttention(8, 2, dropout=1.0), "`dropout` must be a number in [0, 1)"),
        (lambda: EncoderLayer(8, 2, 16, activation="mish"), "Received: activation='mish'"),
        (lambda: EncoderLayer(8, 2, 16, layer_norm_epsilon=-1.0), "`layer_norm_epsilon` must be a positive number"),
        (lambda: EncoderLayer(8, 2, 16, initializer_range=0), "`initializer_range` must be a positive number"),
        (lambda: SelfAttention(8, 2, causal="False"), "`causal` must be True or False. Received: causal='False'"),
        (lambda: EncoderLayer(8, 2, 16, causal=1), "`causal` must be True or False. Received: causal=1"),
        (
            lambda: BertEmbeddings(40, 8, max_sequence_length=4)(MASK, MASK),
            "`token_ids` must have at most 4 tokens per row (max_sequence_length). Received: 9",
        ),
        (lambda: BertEmbeddings(0, 8), "`vocabulary_size` must be a positive integer"),
        (lambda: BertEmbeddings(40, 8, layer_norm_epsilon=0), "`layer_norm_epsilon` must be a positive number"),
        (lambda: BertEmbeddings(40, 8, initializer_range=-1), "`initializer_range` must be a positive number"),
        (lambda: EncoderLayer(8, 2, 16, colour="red"), "colour"),
    ],
)
def test_bad_arguments(build, words):
    with pytest.raises(ValueError) as error:
        build()
    assert words in str(error.value)


# --- Dropout


@pytest.mark.parametrize("shape", [(40, 25, 101), (7, 3), (100_003,)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.003])
@pytest.mark.parametrize("dtype, close", [("float32", 1e-4), ("mixed_bfloat16", 2**-8)])
def test_dropout_drops_its_share_and_keeps_the_mean(shape, rate, dtype, close):
    """This holds whatever is drawn together with a value; each mask is new, and the same seed gives the same one."""
    keras.utils.set_random_seed(1)
    layer, ones = Dropout(rate, dtype=dtype), np.ones(shape, "float32")
    first, second = (numpy(layer(ones, training=True)).ravel() for _ in range(2))
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(numpy(Dropout(rate, dtype=dtype)(ones, training=True)).ravel(), first)
    share = round(rate * 2**16) / 2**16
    for values in (first, second):
        np.testing.assert_allclose(np.unique(values)[-1], 1 / (1 - share), rtol=close)  # Keras uses the rate itself.
        assert ((values == 0) | (values == values.max())).all()
    if first.size > 1000:
        bound = 5 * math.sqrt(rate * (1 - rate) / first.size)
        assert abs((first == 0).mean() - rate) < bound
        pairs = {"the next call": (first, second)} | {
            f"{n} values on": (first[:-n], first[n:]) for n in (1, 2, 3, 4, 8, 101, 4096)
        }
        for which, (one, other) in pairs.items():
            both = ((one == 0) & (other == 0)).mean()
            assert abs(both - rate**2) < 5 * math.sqrt(rate**2 * (1 - rate**2) / one.size), which
        for lane in range(8):  # On PyTorch that many come from one number, on TensorFlow half as many.
            assert abs((first[lane::8] == 0).mean() - rate) < 3 * bound
    np.testing.assert_array_equal(numpy(layer(ones)), ones)


def test_dropout_draws_all_anew():
    """So are limits that values share: which columns have lost any value does not tell what the next call drops."""
    layer, ones = Dropout(1 / 512), np.ones((400, 4096), "float32")
    first, second = ((numpy(layer(ones, training=True)) == 0).any(0) for _ in range(2))
    both = first.mean() * second.mean()
    assert abs((first & second).mean() - both) < 5 * math.sqrt(both * (1 - both) / 4096)


def test_dropout_scales_by_the_share_that_it_keeps():
    """On JAX, whose rate is exact to 2^-32, that is one minus the rate; elsewhere the rate is a multiple of 2^-16."""
    dropped = 0.1 if keras.backend.backend() == "jax" else 6554 / 65536
    largest = numpy(Dropout(0.1)(np.ones((100,), "float32"), training=True)).max()
    np.testing.assert_allclose(largest, 1 / (1 - dropped), rtol=1e-6)


def test_dropout_draws_limits_apart_from_values():
    """At 2^-14 one limit in 64 drops a value that draws 0 of 256; if both shared a draw, each such one would drop."""
    layer, ones = Dropout(2**-14), np.ones((4096,), "float32")
    dropped = sum((numpy(layer(ones, training=True)) == 0).sum() for _ in range(100))
    assert 2 < dropped < 60  # 25 are expected.


@pytest.mark.parametrize("rate", [0.9999, 255 / 256, 1e-6])
def test_dropout_at_rates_that_a_byte_cannot_have(rate):
    dropped = (numpy(Dropout(rate)(np.ones((100_003,), "float32"), training=True)) == 0).mean()
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / 100_003)


def test_dropout_with_a_seed_or_a_noise_shape_is_that_of_keras():
    ones = np.ones((40, 25), "float32")
    for options in ({"seed": 3}, {"seed": 3, "noise_shape": (40, 1)}):
        ours, theirs = (kind(0.5, **options)(ones, training=True) for kind in (Dropout, keras.layers.Dropout))
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    rows = numpy(Dropout(0.5, noise_shape=(40, 1))(ones, training=True))
    np.testing.assert_array_equal(rows, np.repeat(rows[:, :1], 25, axis=1))
    assert set(rows.ravel()) == {0.0, 2.0}


def test_dropout_s_gradient_has_its_mask():
    """Of half the sum of squares, it is the output times the factor: zero where the output is, and only there."""
    inputs = keras.Input((4096,))
    dense = keras.layers.Dense(4096, use_bias=False, kernel_initializer="ones", name="dense")
    model = keras.Model(inputs, Dropout(0.25)(dense(inputs), training=True))
    x, outputs = np.zeros((1, 4096), "float32"), []
    x[0, 0] = 1

    def half_of_squares(output):
        outputs.append(output)
        return keras.ops.sum(output * output) / 2

    gradient = next(iter(gradients(model, x, half_of_squares).values()))[0]
    assert set(gradient.round(4)) == {0.0, np.float32(np.round(1 / 0.75**2, 4))}
    assert abs((gradient == 0).mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 4096)
    if keras.backend.backend() != "jax":  # There it is traced.
        np.testing.assert_allclose(gradient, numpy(outputs[0])[0] / 0.75, rtol=1e-5)


def assert_drops_out(layer, *inputs):
    """Training must change outputs by far more than an activation or attention that it computes in another way."""
    dropped, whole = (numpy(layer(*inputs, training=training)) for training in (True, False))
    assert np.abs(dropped - whole).max() > 0.1


@pytest.mark.parametrize("silenced", ["attention", "feed-forward"])
def test_each_half_of_a_block_drops_out(silenced):
    layer = EncoderLayer(8, 2, 16, dropout=0.5, attention_dropout=0.0)
    layer.build(HIDDEN.shape)
    randomise(layer)
    last = layer.attention.output_dense if silenced == "attention" else layer.output_dense
    last.set_weights([np.zeros(weight.shape) for weight in last.weights])
    assert_drops_out(layer, HIDDEN, MASK)


def test_embeddings_drop_out():
    inputs = random_inputs()
    assert_drops_out(BertEmbeddings(40, 8, dropout=0.5), inputs["token_ids"], inputs["segment_ids"])


@pytest.mark.parametrize(
    "task, options",
    [
        (kbz.BertTextClassifier, {"num_classes": 3}),
        (kbz.BertTextRegressor, {}),
        (kbz.BertTokenClassifier, {"num_classes": 3}),
        (kbz.BertFeatureTokenClassifier, {"num_classes": 3, "hidden_layers": [-1], "units": 4}),
        (kbz.BertMultipleChoice, {}),
    ],
)
def test_heads_drop_out(task, options):
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0)
    inputs = random_inputs()
    if task is kbz.BertMultipleChoice:
        inputs = {name: array[None] for name, array in inputs.items()}
    assert_drops_out(randomise(task(backbone, dropout=0.5, **options), scale=0.5), inputs)
    assert task(backbone, **options).dropout == 0.1  # The paper's (A.2), unless another is given.


@pytest.mark.parametrize("build", [lambda: SelfAttention(8, 2), lambda: EncoderLayer(8, 2, 16)])
def test_a_block_for_each_sentence_of_documents(build):
    layer = build()
    outputs = keras.layers.TimeDistributed(layer)(keras.Input((3, 9, 8)))
    assert outputs.shape == (None, 3, 9, 8)
    sentences = HIDDEN + np.arange(3, dtype="float32")[:, None, None, None]
    documents = keras.layers.TimeDistributed(layer)(sentences)
    for document, hidden in zip(numpy(documents), sentences, strict=True):
        np.testing.assert_allclose(document, numpy(layer(hidden)), atol=1e-5)


def test_the_config_of_a_block_is_what_it_was_made_with():
    arguments = {
        "hidden_dim": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "activation": "relu",
        "dropout": 0.2,
        "attention_dropout": 0.3,
        "layer_norm_epsilon": 1e-3,
        "causal": True,
        "initializer_range": 0.1,
    }
    config = EncoderLayer(**arguments).get_config()
    assert {name: config[name] for name in arguments} == arguments


def test_initial_weights_are_within_two_deviations():
    """Keras on PyTorch leaves one in some 200,000 outside."""
    values = numpy(Normal(stddev=0.02, seed=0)((2000, 1024)))
    assert np.abs(values).max() <= np.float32(0.04)
    assert values.std() == pytest.approx(0.0176, abs=1e-4)  # A truncated normal's: 0.8796 of the normal's.


@torch_only
def test_every_kernel_begins_within_two_deviations(monkeypatch):
    """Keras' draws are replaced by values at three."""
    monkeypatch.setattr(
        keras.initializers.TruncatedNormal,
        "__call__",
        lambda self, shape, dtype=None: keras.ops.full(shape, self.mean + 3 * self.stddev, dtype),
    )
    model = kbz.BertPretrainer(kbz.BertBackbone(**TINY))
    drawn = {weight.path: numpy(weight).max() for weight in model.weights if len(weight.shape) == 2}
    assert {"pooler/kernel", "mlm_head/dense/kernel", "nsp/kernel"} < set(drawn)
    assert drawn == dict.fromkeys(drawn, np.float32(0.04))

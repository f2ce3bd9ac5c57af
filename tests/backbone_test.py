"""The backbone: size, outputs, serialisation, what Keras can do to its products, what it refuses."""

import re
from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TINY, check_saving, gradients, numpy, random_inputs, randomise, short_error, slow_on


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize(
    "preset, parameters",
    [("bert_base", 109_482_240), pytest.param("bert_large", 335_141_888, marks=pytest.mark.slow)],
)
def test_parameters(preset, parameters):
    assert kbz.BertBackbone.from_preset(preset, load_weights=False).count_params() == parameters


def test_fresh_weights_spread_as_told():
    """A normal that is cut at two standard deviations keeps sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) = 0.88 of one."""
    backbone = kbz.BertBackbone(**{**TINY, "hidden_dim": 128}, initializer_range=0.1)
    heads = [kbz.BertPretrainer, kbz.BertTextRegressor, kbz.BertQuestionAnswerer, kbz.BertMultipleChoice]
    heads += [partial(task, num_classes=3) for task in (kbz.BertTextClassifier, kbz.BertTokenClassifier)]
    for model in (head(backbone) for head in heads):
        for weight in model.weights:
            if weight.ndim > 1:  # These have 128 values or more.
                assert numpy(weight).std() == pytest.approx(0.088, rel=0.3), (model.name, weight.path)


def test_outputs_and_their_precision(backbone):
    expected = {name: numpy(value) for name, value in randomise(backbone)(random_inputs()).items()}
    assert {name: value.shape for name, value in expected.items()} == {
        "sequence_output": (3, 9, 8),
        "pooled_output": (3, 8),
    }
    for policy, dtype, atol in (
        ("float32", "float32", 0),
        ("mixed_bfloat16", "bfloat16", 0.1),
        ("mixed_float16", "float16", 0.02),
    ):
        other = kbz.BertBackbone(**TINY, dtype=policy)
        other.set_weights(backbone.get_weights())
        outputs = other(random_inputs())
        assert {keras.backend.standardize_dtype(value.dtype) for value in outputs.values()} == {dtype}
        for name, value in expected.items():
            np.testing.assert_allclose(numpy(outputs[name]).astype("float32"), value, atol=atol, err_msg=name)


def test_padding_changes_nothing(backbone):
    randomise(backbone)
    inputs = random_inputs()
    longer = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in inputs.items()}
    longer["token_ids"][:, 9:] = 7
    for name, value in backbone(inputs).items():
        np.testing.assert_allclose(numpy(backbone(longer)[name])[:, : value.shape[1]], numpy(value), atol=1e-5)


def test_causal_backbone_does_not_look_ahead():
    backbone = randomise(kbz.BertBackbone(**TINY, causal=True))
    inputs = {name: array[:1] for name, array in random_inputs().items()}
    changed = {**inputs, "token_ids": inputs["token_ids"].copy()}
    changed["token_ids"][0, 5] = 39 - changed["token_ids"][0, 5]
    before, after = (numpy(backbone(x)["sequence_output"]) for x in (inputs, changed))
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert (np.abs(before - after)[:, 5:].max(-1) > 1e-3).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [0, 2, [[0, 8, 3], [1, 1, 0], [0, 2, 1]]], ids=["first", "third", "each"])
def test_outputs_at_positions_are_those_of_all(positions, causal):
    backbone, inputs = randomise(kbz.BertBackbone(**TINY, causal=causal)), random_inputs()
    places = np.full((3, 1), positions) if isinstance(positions, int) else np.array(positions)
    everywhere = numpy(backbone(inputs)["sequence_output"])
    outputs = backbone(inputs, output_positions=positions if isinstance(positions, int) else places)
    hidden = np.take_along_axis(everywhere, places[..., None], axis=1)
    np.testing.assert_allclose(numpy(outputs["sequence_output"]), hidden, atol=1e-5)
    pooled = backbone.pooler_layer(keras.ops.convert_to_tensor(hidden[:, 0]))
    np.testing.assert_allclose(numpy(outputs["pooled_output"]), numpy(pooled), atol=1e-5)


def test_attention_scores_at_positions_are_those_of_all(backbone):
    block, mask = backbone.encoder_layers[0], random_inputs()["padding_mask"]
    hidden = np.random.default_rng(0).normal(size=(*mask.shape, 8)).astype("float32")
    everywhere, scores = block(hidden, mask, return_attention_scores=True)
    output, score = block(hidden, mask, output_positions=4, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(everywhere)[:, 4:5], atol=1e-5)
    np.testing.assert_allclose(numpy(score), numpy(scores)[:, :, 4:5], atol=1e-6)


PLACES = np.array([[0, 8, 3, 0], [0, 1, 1, 0], [0, 2, 1, 1]], "int32")  # The pooler reads the first one.


@pytest.mark.parametrize("positions", [PLACES, 0], ids=["many", "one"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("mixed_bfloat16", 0.06)])
def test_gradients_at_positions_are_those_of_all(dtype, tolerance, causal, positions):
    backbone = randomise(kbz.BertBackbone(**TINY, causal=causal, dtype=dtype))
    places = np.broadcast_to(positions, PLACES.shape if positions is PLACES else (3, 1)).astype("int32")
    weighing = np.random.default_rng(5).normal(size=(*places.shape, 8)).astype("float32")
    chosen = (places[..., None] == np.arange(9)).astype("float32")

    symbols = {**backbone.input, "places": keras.Input((4,), dtype="int32", name="places")}
    asked = symbols["places"] if positions is PLACES else positions
    at_places = keras.Model(symbols, backbone(backbone.input, output_positions=asked))

    def loss(outputs):
        sequence = keras.ops.cast(outputs["sequence_output"], "float32")
        if sequence.shape[1] == 9:
            sequence = keras.ops.matmul(chosen, sequence)
        return keras.ops.sum(keras.ops.multiply(sequence, weighing)) + keras.ops.sum(
            keras.ops.cast(outputs["pooled_output"], "float32")
        )

    everywhere = gradients(backbone, random_inputs(), loss)
    some = gradients(at_places, {**random_inputs(), "places": PLACES}, loss)
    assert everywhere.keys() == some.keys()
    for path, grad in everywhere.items():
        np.testing.assert_allclose(some[path], grad, atol=tolerance * np.abs(grad).max(), err_msg=path)


def test_symbolic_calls_at_positions_are_apart_from_each_other(backbone):
    """They are also apart from the backbone's own graph."""
    first, second = random_inputs(), random_inputs(seed=1)
    symbols = [{name: keras.Input((9,), batch_size=3, dtype="int32") for name in first} for _ in range(2)]
    pooled = [backbone(inputs, output_positions=0)["pooled_output"] for inputs in symbols]
    assert [tensor.shape for tensor in pooled] == [(3, 8)] * 2
    difference = numpy(keras.Model(symbols, pooled[0] - pooled[1])([first, second]))
    expected = [numpy(backbone(inputs)["pooled_output"]) for inputs in (first, second)]
    assert np.abs(difference).max() > 1e-3
    np.testing.assert_allclose(difference, expected[0] - expected[1], atol=1e-5)
    kbz.BertPretrainer(backbone)
    own = keras.Model(backbone.input, backbone.output)(first)
    np.testing.assert_allclose(numpy(own["pooled_output"]), expected[0], atol=1e-5)


@pytest.mark.parametrize(
    "positions, words",
    [
        (-1, "`output_positions` must be at least 0 and below the length. Received: output_positions=-1, length 9"),
        (9, "`output_positions` must be at least 0 and below the length. Received: output_positions=9, length 9"),
        (True, "`output_positions` must be an integer array. Received: output_positions of type bool"),
        ([0, 1], "`output_positions` must be an integer array. Received: output_positions of type list"),
        (np.array([0, 1]), "`output_positions` must have the shape [batch, n], n at least 1"),
        (np.zeros((3, 0), "int32"), "`output_positions` must have the shape [batch, n], n at least 1"),
        (np.array([[0, 1]]), "output_positions.shape=(1, 2), token_ids.shape=(3, 9)"),
        (np.zeros((3, 1)), "`output_positions` must hold integers. Received: output_positions.dtype=float64"),
        (np.array([[0], [9], [0]]), "`output_positions` must be in [0, 9). Received: output_positions with 9"),
    ],
)
def test_positions_that_texts_do_not_have_are_refused(backbone, positions, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        backbone(random_inputs(), output_positions=positions)


def test_a_position_beyond_a_symbolic_text_is_refused(backbone):
    symbols = {name: keras.Input((9,), dtype="int32") for name in random_inputs()}
    with pytest.raises(ValueError, match="output_positions=9, length 9"):
        backbone(symbols, output_positions=9)
    with pytest.raises(ValueError, match="output_positions=9, length 9"):
        backbone.encoder_layers[0](np.zeros((3, 9, 8), "float32"), output_positions=9)


@pytest.mark.parametrize("positions", [None, 0])
def test_no_text_has_no_outputs(backbone, positions):
    nothing = {name: array[:0] for name, array in random_inputs().items()}
    outputs = backbone(nothing, output_positions=positions)
    assert outputs["sequence_output"].shape == (0, 9 if positions is None else 1, 8)
    assert outputs["pooled_output"].shape == (0, 8)


def test_extractor_shows_the_same_computation(backbone):
    randomise(backbone)
    inputs = random_inputs()
    outputs, features = backbone(inputs), backbone.extractor(attention_scores=True)(inputs)
    np.testing.assert_allclose(numpy(features["sequence_output"]), numpy(outputs["sequence_output"]), atol=1e-5)
    np.testing.assert_array_equal(numpy(features["hidden_states"][-1]), numpy(features["sequence_output"]))
    assert len(features["hidden_states"]) == 3
    for scores in features["attention_scores"]:
        assert tuple(scores.shape) == (3, 2, 9, 9)
        np.testing.assert_allclose(numpy(scores).sum(-1), 1, atol=1e-6)
        assert (numpy(scores)[inputs["padding_mask"][:, None, None, :].repeat(2, 1).repeat(9, 2) == 0] == 0).all()
    fast = backbone.extractor()
    assert set(fast(inputs)) == {"sequence_output", "pooled_output", "hidden_states"}
    assert fast.predict(inputs, verbose=0)["hidden_states"][0].shape == (3, 9, 8)
    assert set(backbone.extractor(hidden_states=False)(inputs)) == {"sequence_output", "pooled_output"}


@pytest.mark.parametrize("options", [{}, {"causal": True, "pooler": False, "activation": "relu", "dropout": 0.3}])
def test_saves(options, tmp_path):
    loaded = check_saving(lambda: kbz.BertBackbone(**TINY, **options), random_inputs(), tmp_path)
    assert {**loaded.architecture, **options} == loaded.architecture


def test_precision_is_saved(tmp_path):
    loaded = check_saving(lambda: kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), random_inputs(), tmp_path)
    assert loaded.encoder_layers[0].attention.qkv.compute_dtype == "bfloat16"


def test_extractor_saves(tmp_path):
    build = lambda: kbz.BertBackbone(**TINY).extractor(attention_scores=True)  # noqa: E731
    check_saving(build, random_inputs(), tmp_path)


def test_every_product_is_in_a_dense_or_embedding_layer(backbone):
    products = [layer for layer in backbone._flatten_layers() if isinstance(layer, keras.layers.Dense)]
    tables = [layer for layer in backbone._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    inside = {id(weight) for layer in products + tables for weight in layer.weights}
    outside = {weight.name for weight in backbone.weights if id(weight) not in inside}
    assert outside == {"gamma", "beta"}
    before = backbone.count_params()
    for layer in products:
        layer.enable_lora(2)
    assert backbone.count_params() - before == sum(2 * (k.shape[0] + k.shape[1]) for k in (p._kernel for p in products))


@slow_on("tensorflow", "jax")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")  # Keras says so of each Dropout
def test_int8_stays_close(backbone):
    randomise(backbone)
    inputs = random_inputs()
    before = [numpy(backbone(inputs, output_positions=position)["sequence_output"]) for position in (None, 0)]
    backbone.quantize("int8")
    assert backbone.encoder_layers[0].attention.qkv.quantization_mode == "int8"
    for position, expected in zip((None, 0), before, strict=True):
        after = numpy(backbone(inputs, output_positions=position)["sequence_output"])
        assert 0 < np.abs(expected - after).max() < 0.2


@pytest.mark.parametrize(
    "change, words",
    [
        ({"num_heads": 3}, "`num_heads` must divide `hidden_dim`. Received: num_heads=3, hidden_dim=8"),
        ({"num_layers": 0}, "`num_layers` must be a positive integer. Received: num_layers=0"),
        ({"vocabulary_size": "40"}, "`vocabulary_size` must be a positive integer. Received: vocabulary_size='40'"),
        ({"attention_dropout": -0.1}, "`attention_dropout` must be a number in [0, 1)"),
        ({"layer_norm_epsilon": -1.0}, "`layer_norm_epsilon` must be a positive number"),
        ({"causal": 1}, "`causal` must be True or False. Received: causal=1"),
        ({"pooler": "x"}, "`pooler` must be True or False. Received: pooler='x'"),
        ({"activation": ["gelu"]}, "Received: activation=['gelu']"),
        ({"activation": "mish"}, "Received: activation='mish'"),
        ({"hidden": 8}, "BertBackbone has no argument of this name. Received: hidden"),
    ],
)
def test_bad_arguments(change, words):
    with short_error(words):
        kbz.BertBackbone(**{**TINY, **change})


def test_bad_arguments_of_an_extractor(backbone):
    with short_error("`hidden_states` must be True or False. Received: hidden_states='no'"):
        backbone.extractor(hidden_states="no")


def broken(**changes):
    return {**random_inputs(), **changes}


BAD_INPUTS = [
    (random_inputs(length=17), "`token_ids` must have at most 16 tokens per row"),
    (broken(token_ids=np.full((3, 9), 40)), "`token_ids` must be in [0, 40). Received: token_ids with 40"),
    (broken(token_ids=np.full((3, 9), -1)), "`token_ids` must be in [0, 40). Received: token_ids with -1"),
    (broken(segment_ids=np.full((3, 9), 2)), "`segment_ids` must be in [0, 2). Received: segment_ids with 2"),
    (broken(padding_mask=np.full((3, 9), 5)), "`padding_mask` must be in [0, 2)"),
    (broken(token_ids=np.ones((3, 9))), "`token_ids` must hold integers. Received: token_ids.dtype=float64"),
    (broken(segment_ids=np.zeros((3, 8), int)), "All inputs must have one shape"),
    (broken(token_ids=np.zeros(9, int)), "`token_ids` must have the shape [batch, length]"),
    (broken(token_ids=None), "`token_ids` must be an integer array"),
    ({"token_ids": np.zeros((3, 9), int)}, "Inputs must be a dict of token_ids, segment_ids, padding_mask"),
    (
        {name: array[:, :0] for name, array in random_inputs().items()},
        "`token_ids` must have at least one token per row",
    ),
    (np.zeros((3, 9), int), "Inputs must be a dict of token_ids, segment_ids, padding_mask. Received: ndarray"),
]


def test_bad_inputs_leave_the_model_usable(backbone):
    extractor = backbone.extractor()
    for inputs, words in BAD_INPUTS:
        for run in (backbone, lambda x: backbone.predict(x, verbose=0), extractor, backbone.evaluate, backbone.fit):
            with short_error(words):
                run(inputs)
    assert np.isfinite(backbone.predict(random_inputs(), verbose=0)["pooled_output"]).all()

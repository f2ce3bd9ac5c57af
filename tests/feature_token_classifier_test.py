"""Features of a frozen backbone under a BiLSTM: which layers, how combined, and that nothing of BERT moves."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TINY, check_saving, numpy, random_inputs, randomise, short_error, slow_on

NAMES = ["B-PER", "I-PER", "O"]


def build(tokenizer=None, **options):
    preprocessor = None if tokenizer is None else kbz.BertWordPreprocessor(tokenizer, sequence_length=16)
    backbone = kbz.BertBackbone(**TINY, pooler=False)
    return kbz.BertFeatureTokenClassifier(
        backbone, class_names=NAMES, units=4, preprocessor=preprocessor, **{"hidden_layers": (-2, 0), **options}
    )


def lstm(x, kernel, recurrent, bias):
    """Gates in Keras' order: input, forget, candidate, output."""
    sigmoid, units = (lambda z: 1 / (1 + np.exp(-z))), recurrent.shape[0]
    state, cell, outputs = np.zeros(units), np.zeros(units), []
    for row in x:
        i, f, c, o = np.split(row @ kernel + state @ recurrent + bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        state = sigmoid(o) * np.tanh(cell)
        outputs.append(state)
    return np.array(outputs)


@pytest.mark.parametrize("combine", ["concatenate", "weighted_sum"])
def test_logits(combine):
    """Hidden states are from the extractor; NumPy does the rest, a row at a time, without its padding."""
    tagger, inputs = randomise(build(combine=combine)), random_inputs()
    states = [numpy(state).astype("float64") for state in tagger.backbone.extractor()(inputs)["hidden_states"]]
    weights = {weight.path: numpy(weight).astype("float64") for weight in tagger.weights}
    if combine == "concatenate":
        features = np.concatenate([states[-2], states[0]], axis=-1)
    else:
        first, second = np.exp(weights["weighted_sum/scores"])
        features = (first * states[-2] + second * states[0]) / (first + second)
    logits = numpy(tagger(inputs))
    for row, length in enumerate(inputs["padding_mask"].sum(1)):
        x = features[row, :length]
        for layer in range(2):
            there, back = (
                [weights[f"bilstm/layer_{layer}/{way}_lstm/lstm_cell/{name}"] for name in KINDS]
                for way in ("forward", "backward")
            )
            x = np.concatenate([lstm(x, *there), lstm(x[::-1], *back)[::-1]], axis=-1)
        expected = x @ weights["classifier/kernel"] + weights["classifier/bias"]
        np.testing.assert_allclose(logits[row, :length], expected, atol=1e-5)


KINDS = ("kernel", "recurrent_kernel", "bias")


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize("combine", ["concatenate", "weighted_sum"])
def test_only_the_head_learns(tokenizer, combine):
    tagger = build(tokenizer, combine=combine)
    before = {weight.path: numpy(weight).copy() for weight in tagger.weights}
    tagger.fit([["a", "film"], ["warm"]] * 2, [["O", "B-PER"], ["O"]] * 2, verbose=0)
    moved = {weight.path for weight in tagger.weights if not np.array_equal(numpy(weight), before[weight.path])}
    assert moved == {path for path in before if path.startswith(("weighted_sum", "bilstm", "classifier"))}
    assert len(tagger.tag(["a film"])) == 1


def test_the_backbone_does_not_drop_out():
    tagger, inputs = randomise(build(dropout=0.0)), random_inputs()
    assert tagger.backbone.architecture["dropout"] == 0.1
    np.testing.assert_allclose(numpy(tagger(inputs, training=True)), numpy(tagger(inputs)), atol=1e-5)


def test_saves(tmp_path):
    loaded = check_saving(lambda: build(combine="weighted_sum"), random_inputs(), tmp_path)
    assert not loaded.backbone.trainable
    with pytest.raises(ValueError, match="A preset cannot store a BiLSTM"):
        loaded.save_to_preset(tmp_path / "preset")


def thaw(backbone):
    backbone.trainable = True


def thaw_the_last_block(backbone):
    backbone.trainable = True
    backbone.embeddings.trainable = False
    backbone.encoder_layers[0].trainable = False


@pytest.mark.parametrize("change", [thaw, thaw_the_last_block, lambda backbone: backbone.enable_lora(2)])
def test_what_learns_is_saved(change, tmp_path):
    tagger = build()
    change(tagger.backbone)
    learns = [weight.path for weight in tagger.trainable_weights]
    assert any(path.startswith("encoder_layer_1") for path in learns)
    tagger.save(tmp_path / "tagger.keras")
    loaded = keras.models.load_model(tmp_path / "tagger.keras")
    assert [weight.path for weight in loaded.trainable_weights] == learns
    assert len(loaded.optimizer.variables) == len(tagger.optimizer.variables)


@slow_on("tensorflow", "jax")
def test_comes_from_a_preset_with_a_fresh_head(tmp_path):
    """The head is fresh even if the preset is a tagger whose linear layer has the same shape."""
    tagger = kbz.BertTokenClassifier(kbz.BertBackbone(**TINY, pooler=False), class_names=NAMES)
    tagger.save_to_preset(tmp_path / "preset")
    features = kbz.BertFeatureTokenClassifier.from_preset(tmp_path / "preset", units=4, hidden_layers=[-1])
    assert features.class_names == NAMES
    papers = kbz.BertFeatureTokenClassifier(tagger.backbone, num_classes=3)  # Devlin et al. 2019, section 5.3.
    assert (papers.units, papers.num_layers) == (768, 2)
    assert {path.split("/")[0] for path in features.load_report.fresh} == {"bilstm", "classifier"}
    assert features.load_report.unused == ("classifier/kernel", "classifier/bias")
    same = [tagger.backbone, features.backbone]
    x, y = (keras.tree.map_structure(numpy, backbone(random_inputs())) for backbone in same)
    np.testing.assert_array_equal(x["sequence_output"], y["sequence_output"])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"hidden_layers": [3]}, "`hidden_layers` must be integers in [-3, 3). Received: hidden_layers=[3]"),
        ({"hidden_layers": []}, "`hidden_layers` must be integers"),
        ({"hidden_layers": -1}, "`hidden_layers` must be integers in [-3, 3). Received: hidden_layers=-1"),
        ({"hidden_layers": [True]}, "`hidden_layers` must be integers in [-3, 3). Received: hidden_layers=[True]"),
        ({"combine": "mean"}, "`combine` must be one of ('concatenate', 'weighted_sum'). Received: combine='mean'"),
        ({"num_layers": 0}, "`num_layers` must be a positive integer"),
    ],
)
def test_bad_arguments(options, words):
    with short_error(words):
        build(**options)


def test_a_preset_is_no_backbone():
    with pytest.raises(ValueError, match=r"`from_preset` takes a preset. Received: backbone of type str"):
        kbz.BertFeatureTokenClassifier("bert_base", 2)


def test_a_refused_head_leaves_the_backbone_as_it_was(backbone):
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        kbz.BertFeatureTokenClassifier(backbone)
    assert backbone.trainable
    assert len(backbone.trainable_weights) == len(backbone.weights)


@pytest.mark.parametrize("blocks, used", [(1, (-1,)), (5, (-4, -3, -2, -1))])
def test_the_last_four_blocks_or_all_of_fewer(blocks, used):
    model = kbz.BertFeatureTokenClassifier(kbz.BertBackbone(**{**TINY, "num_layers": blocks}), num_classes=3, units=4)
    assert model.hidden_layers == used

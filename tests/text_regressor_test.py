"""The regressor: compared with transformers, and what `fit`, `evaluate` and `predict` take, give and refuse."""

import json

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import (
    SHALLOW,
    TEXTS,
    check_saving,
    gradients,
    numpy,
    random_inputs,
    randomise,
    short_error,
    slow_on,
    streams,
)
from tests.theirs import assert_same_gradients, run_theirs, saved_model

SCORES = [5.0, 0.0, 2.5, 4.2, 3.0, 1.25]


@pytest.fixture
def regressor(tokenizer):
    backbone = kbz.BertBackbone(**SHALLOW)
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    return randomise(kbz.BertTextRegressor(backbone, preprocessor=preprocessor))


SIZES = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def transformers_model(path, **options):
    options = {**SIZES, "max_position_embeddings": 16, "num_labels": 1, **options}
    return saved_model("BertForSequenceClassification", path, scale=0.2, **options)


def test_hugging_face_in_and_out(tmp_path):
    model = transformers_model(tmp_path / "theirs", problem_type="regression")
    inputs = random_inputs(4)
    labels = np.array([0.5, 3.0, -1.0, 5.0], "float32")
    ours = kbz.BertTextRegressor.from_preset(tmp_path / "theirs")
    assert (ours.load_report.fresh, ours.load_report.unused, ours.dropout) == ((), (), 0.0)
    theirs = run_theirs(model, inputs, labels=labels)
    expected = theirs.logits.detach().numpy()
    np.testing.assert_allclose(numpy(ours(inputs)), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.predict(inputs, verbose=0), expected[:, 0], rtol=0, atol=1e-5)
    loss = ours.evaluate(inputs, labels, batch_size=2, verbose=0, return_dict=True)["loss"]
    assert loss == pytest.approx(theirs.loss.item(), abs=1e-5)

    targets = ours.encode_targets(labels, 4)
    mine = gradients(
        ours, inputs, lambda outputs: keras.ops.mean(ours.loss(keras.ops.convert_to_tensor(targets), outputs))
    )
    theirs.loss.backward()
    assert_same_gradients(mine, model)

    ours.save_to_preset(tmp_path / "ours")
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert (again.config.num_labels, again.config.problem_type) == (1, "regression")
    np.testing.assert_array_equal(run_theirs(again.eval(), inputs).logits.detach().numpy(), expected)
    back = kbz.BertTextRegressor.from_preset(tmp_path / "ours")
    np.testing.assert_array_equal(numpy(back(inputs)), numpy(ours(inputs)))


def test_one_label_is_a_regressor(tmp_path):
    """transformers also takes one label for a regression if the file names no problem."""
    transformers_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.get("problem_type") is None
    assert kbz.BertTextRegressor.from_preset(tmp_path).load_report.fresh == ()


def test_several_numbers_are_no_head_of_ours(tmp_path):
    transformers_model(tmp_path / "theirs", num_labels=3, problem_type="regression")
    assert kbz.BertTextRegressor.from_preset(tmp_path / "theirs").load_report.unused == (
        "classifier.bias", "classifier.weight",
    )  # fmt: skip
    report = kbz.convert_preset(tmp_path / "theirs", tmp_path / "ours")
    assert (report.class_name, report.unused) == ("BertBackbone", ("classifier.bias", "classifier.weight"))


@slow_on("jax")
def test_predictions_come_in_the_order_given(regressor):
    expected = np.array([numpy(regressor(regressor.preprocessor([text])))[0, 0] for text in TEXTS])
    assert len(np.unique(expected.round(4))) == len(TEXTS)
    predicted = regressor.predict(TEXTS, batch_size=2, verbose=0)
    assert (predicted.shape, predicted.dtype) == ((6,), "float32")
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    weights = np.array([1, 0, 0, 2, 0, 1.0])
    loss = regressor.evaluate(TEXTS, SCORES, batch_size=4, sample_weight=weights, verbose=0, return_dict=True)["loss"]
    # Keras' mean counts examples, not weights.
    assert loss == pytest.approx(np.mean((expected - SCORES) ** 2 * weights), rel=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the classifier's test has the other backends")
def test_tf_data_gives_the_same(regressor):
    import tensorflow as tf

    expected = regressor.evaluate(TEXTS, SCORES, batch_size=4, verbose=0, return_dict=True)["loss"]
    stream = tf.data.Dataset.from_tensor_slices((TEXTS, SCORES)).batch(4)
    assert regressor.evaluate(stream, verbose=0, return_dict=True)["loss"] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(regressor.predict(stream, verbose=0), regressor.predict(TEXTS, verbose=0), atol=1e-5)


@slow_on("tensorflow", "jax")
def test_fit_learns(tokenizer):
    sizes = {**SHALLOW, "hidden_dim": 32, "intermediate_dim": 64}
    backbone = kbz.BertBackbone(**sizes, dropout=0.0, attention_dropout=0.0)
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    regressor = kbz.BertTextRegressor(backbone, dropout=0.0, preprocessor=preprocessor)
    assert regressor.optimizer.weight_decay == 0.01  # The default of `compile`.
    regressor.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(6e-3), bias_correction=True))
    same = ["it is"] * 6  # Only the second texts tell the pairs apart.
    losses = regressor.fit((same, TEXTS), SCORES, batch_size=6, epochs=80, verbose=0).history["loss"]
    assert losses[-1] < 2 < np.var(SCORES) < losses[0]  # Guessing their mean costs the variance.


def test_saving(tokenizer, tmp_path):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    inputs = random_inputs(3)
    loaded = check_saving(
        lambda: kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW), dropout=0.2, preprocessor=preprocessor),
        inputs,
        tmp_path,
    )
    assert loaded.dropout == 0.2
    assert loaded.predict(TEXTS, verbose=0).shape == (6,)


def test_heads_of_another_kind_are_not_taken(regressor, classifier, tmp_path):
    classifier.save_to_preset(tmp_path / "classifier")
    fresh = kbz.BertTextRegressor.from_preset(tmp_path / "classifier")
    assert fresh.load_report.fresh == ("regressor/kernel", "regressor/bias")
    assert fresh.load_report.unused == ("classifier/kernel", "classifier/bias")
    regressor.save_to_preset(tmp_path / "regressor")
    with pytest.raises(ValueError, match="the preset has no classification head"):
        kbz.BertTextClassifier.from_preset(tmp_path / "regressor")
    fresh = kbz.BertTextClassifier.from_preset(tmp_path / "regressor", num_classes=2)
    assert fresh.load_report.unused == ("regressor/kernel", "regressor/bias")
    # One label of a multi-label problem is a classifier's.
    path = tmp_path / "regressor" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    single = kbz.BertTextClassifier.from_preset(tmp_path / "regressor")
    assert (single.num_classes, single.multi_label, single.load_report.fresh) == (1, True, ())


@pytest.mark.parametrize(
    "y, words",
    [
        ([[1.0, 2.0]] * 6, "`y` must have the shape (6,), one number per example. Received: y.shape=(6, 2)"),
        ([1.0], "Received: y.shape=(1,)"),
        (["a"] * 6, "`y` must hold numbers. Received: y.dtype="),
        ([True] * 6, "`y` must hold numbers. Received: y.dtype=bool"),
        ([1.0] * 5 + [float("nan")], "`y` must hold finite numbers. Received: y with nan"),
        ([1.0] * 5 + [1e39], "`y` must hold finite numbers. Received: y with 1e+39"),
        (None, "`y` must be given"),
    ],
)
def test_bad_targets(regressor, y, words):
    with short_error(words):
        regressor.fit(TEXTS, y, verbose=0)


def test_a_column_of_objects_that_are_numbers(regressor):
    numbers = [0.5, 1.0, -2.0, 3, 4, 0.25]
    column = np.array(numbers, dtype=object)
    assert regressor.evaluate(TEXTS, column, verbose=0) == regressor.evaluate(TEXTS, numbers, verbose=0)
    column[3] = None
    with short_error("`y` must hold numbers. Received: y.dtype=object"):
        regressor.evaluate(TEXTS, column, verbose=0)


def test_numbers_stream_as_they_are_at_hand(regressor):
    inputs = random_inputs()
    expected = regressor.evaluate(inputs, [0.5, 1.0, -2.0], verbose=0)
    for y in ([0.5, 1.0, -2.0], np.array([0.5, 1.0, -2.0]), np.array([[0.5], [1.0], [-2.0]])):
        for data in streams((inputs, y)):
            assert regressor.evaluate(data, steps=1, verbose=0) == pytest.approx(expected, rel=1e-5)
    for y, words in (([0.5, np.nan, 1.0], "finite"), (np.ones((3, 2)), r"shape \(3,\)"), (["a", "b", "c"], "numbers")):
        for data in streams((inputs, y)):
            with pytest.raises(ValueError, match=f"`y` must .*{words}"):
                regressor.fit(data, verbose=0)


def test_batches_are_evaluated_as_what_they_are_made_of(regressor):
    y = [0.0, 1.5, 3.0, 0.5, 2.0, 5.0]
    batches = regressor.batches(TEXTS, y, batch_size=4, shuffle=False)
    assert regressor.evaluate(batches, verbose=0) == pytest.approx(regressor.evaluate(TEXTS, y, verbose=0), rel=1e-5)


def test_bad_arguments(backbone, regressor):
    for options, words in (
        ({"dropout": 1.0}, "`dropout` must be a number in [0, 1). Received: dropout=1.0"),
        ({"num_classes": 2}, "BertTextRegressor has no argument of this name. Received: num_classes"),
    ):
        with short_error(words):
            kbz.BertTextRegressor(backbone, **options)
    with pytest.raises(ValueError, match="`backbone` must have a pooler"):
        kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW, pooler=False))
    with pytest.raises(ValueError, match="`class_weight` needs classes"):
        regressor.fit(TEXTS, SCORES, class_weight={0: 1.0}, verbose=0)

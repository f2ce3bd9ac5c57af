"""Metrics and losses that Keras computes from probabilities are computed from logits, or refused."""

from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import (
    LABELS,
    SHALLOW,
    TEXTS,
    crossentropy,
    numpy,
    random_inputs,
    randomise,
    short_error,
    slow_on,
    streams,
)

ONES = np.random.default_rng(0).integers(0, 2, (len(TEXTS), 3))
METRICS = keras.metrics


@pytest.fixture
def several(tokenizer):
    """A model that answers with any of three classes, near a probability of one half and far from it."""
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    return randomise(
        kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), 3, multi_label=True, preprocessor=preprocessor)
    )


def probabilities(model):
    return 1 / (1 + np.exp(-model.predict(TEXTS, verbose=0).astype("float64")))


@pytest.mark.parametrize(
    "metric, of_probabilities",
    [
        ("accuracy", METRICS.BinaryAccuracy),
        ("Accuracy", METRICS.BinaryAccuracy),
        ("acc", METRICS.BinaryAccuracy),
        ("binary_accuracy", METRICS.BinaryAccuracy),
        (METRICS.binary_accuracy, METRICS.BinaryAccuracy),
        ("Precision", METRICS.Precision),
        (METRICS.Recall, METRICS.Recall),
        ("auc", METRICS.AUC),
        ("bce", METRICS.BinaryCrossentropy),
        (METRICS.AUC(from_logits=True, multi_label=True, num_labels=3), lambda: METRICS.AUC(multi_label=True)),
        (METRICS.Precision(thresholds=0.0, class_id=1), lambda: METRICS.Precision(class_id=1)),
    ],
)
@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_metrics_are_of_logits(metric, of_probabilities, argument, several):
    several.compile(**{"metrics": None, argument: [metric]})
    found = several.evaluate(TEXTS, ONES, verbose=0)[1]
    expected = of_probabilities()
    expected.update_state(ONES, probabilities(several).astype("float32"))
    assert found == pytest.approx(float(expected.result()), rel=1e-5)


def test_counts_are_of_logits(several):
    several.compile(metrics=["TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives"])
    found = several.evaluate(TEXTS, ONES, verbose=0, return_dict=True)
    said = probabilities(several) > 0.5
    expected = {
        "TruePositives": np.sum(said & (ONES == 1)),
        "TrueNegatives": np.sum(~said & (ONES == 0)),
        "FalsePositives": np.sum(said & (ONES == 0)),
        "FalseNegatives": np.sum(~said & (ONES == 1)),
    }
    assert {name: found[name] for name in expected} == expected


def test_one_class_of_several(classifier):
    randomise(classifier).compile(metrics=["sparse_categorical_crossentropy", "accuracy"])
    scores = classifier.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)
    assert scores["sparse_categorical_crossentropy"] == pytest.approx(scores["loss"], rel=1e-5)
    best = classifier.predict(TEXTS, verbose=0).argmax(-1)
    assert scores["accuracy"] == pytest.approx(np.mean(best == LABELS))


@pytest.mark.parametrize(
    "metric, words",
    [
        (METRICS.AUC(), "AUC(from_logits=True). Received: one with from_logits=False"),
        (METRICS.BinaryCrossentropy(), "BinaryCrossentropy(from_logits=True). Received: one with from_logits=False"),
        (METRICS.BinaryAccuracy(), "BinaryAccuracy(threshold=0.0) for a probability of one half. Received: one with"),
        (METRICS.Precision(), "Precision(thresholds=0.0) for a probability of one half. Received: one with"),
        (METRICS.Recall(thresholds=0.5), "Recall(thresholds=0.0) for a probability of one half. Received: one with"),
        (METRICS.TruePositives(thresholds=[0.5]), "TruePositives(thresholds=0.0) for a probability of one half. "),
        (METRICS.F1Score(threshold=0.5), "ValidationScores has the scores of labels. Received: F1Score(threshold=0.5)"),
        (METRICS.FBetaScore(threshold=0.5), "scores of labels. Received: FBetaScore(threshold=0.5)"),
        ("BinaryIoU", "of logits. Received: 'BinaryIoU', which is of probabilities"),
        ("binary_focal_crossentropy", "of logits. Received: 'binary_focal_crossentropy', which is of probabilities"),
        ("categorical_focal_crossentropy", "Received: 'categorical_focal_crossentropy', which is of probabilities"),
        (METRICS.SensitivityAtSpecificity(0.5), "of logits. Received: SensitivityAtSpecificity, which is of"),
        (METRICS.SpecificityAtSensitivity(0.5), "of logits. Received: SpecificityAtSensitivity, which is of"),
        (METRICS.PrecisionAtRecall(0.5), "of logits. Received: PrecisionAtRecall, which is of probabilities"),
        (METRICS.RecallAtPrecision(0.5), "of logits. Received: RecallAtPrecision, which is of probabilities"),
        ("kld", "of logits. Received: 'kld', which is of probabilities"),
        ("crossentropy", "must name the cross-entropy, such as \"sparse_categorical_crossentropy\". Received: metrics"),
    ],
)  # fmt: skip
def test_metrics_of_probabilities_are_refused(metric, words, several):
    with pytest.raises(ValueError) as error:
        several.compile(metrics=[metric])
    assert str(error.value).startswith("`metrics` must")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "loss, name",
    [
        ("kl_divergence", "'kl_divergence'"),
        (keras.losses.kl_divergence, "kl_divergence"),
        (keras.losses.KLDivergence(), "KLDivergence"),
        (keras.losses.Dice, "Dice"),
        (keras.losses.Tversky(), "Tversky"),
    ],
)
def test_losses_of_probabilities_are_refused(loss, name, classifier):
    with pytest.raises(ValueError) as error:
        classifier.compile(loss=loss)
    assert str(error.value) == (
        "`loss` must be of logits, such as CategoricalCrossentropy(from_logits=True) for class probabilities. "
        f"Received: {name}, which is of probabilities"
    )


@pytest.fixture
def tasks():
    """Each task of classes, with three examples of three classes, which would stretch to the outputs' shape."""
    inputs, backbone = random_inputs(), kbz.BertBackbone(**SHALLOW)
    choices = {name: np.stack([array] * 3, axis=1) for name, array in inputs.items()}
    tags = np.where(inputs["padding_mask"], 1, -100)
    return [
        (kbz.BertTextClassifier(backbone, 3), inputs, np.array([0, 1, 2])),
        (kbz.BertMultipleChoice(backbone), choices, np.array([0, 1, 2])),
        (kbz.BertTokenClassifier(backbone, 3), inputs, tags),
        (kbz.BertQuestionAnswerer(backbone), inputs, np.array([[0, 1]] * 3)),
    ]


@pytest.mark.parametrize(
    "loss, name",
    [
        ("mse", "'mse'"),
        ("Huber", "'Huber'"),
        (keras.losses.hinge, "hinge"),
        (keras.losses.MeanAbsoluteError(), "MeanAbsoluteError"),
        (keras.losses.CosineSimilarity, "CosineSimilarity"),
        ("bce", "BinaryCrossentropy"),
        ([keras.losses.CategoricalFocalCrossentropy(from_logits=True)], "CategoricalFocalCrossentropy"),
    ],
)
def test_losses_of_values_take_no_labels(loss, name, tasks):
    for model, x, y in tasks:
        model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=None)
        words = "`loss` must take labels", "or `y` have the outputs' shape", f"loss={name}, y.shape={y.shape}"
        batches = streams((x, y), (x, y)) + streams((x, y, np.ones(3)))
        for data in batches:
            with short_error(*words):
                model.fit(data, steps_per_epoch=1, verbose=0)
        for run in (model.fit, model.evaluate):
            with short_error(*words):
                run(x, y, verbose=0)
        for run in (model.train_on_batch, model.test_on_batch):
            with short_error(*words):
                run(x, y)
        assert not model.optimizer.built


def test_losses_of_values_take_no_labels_of_raw_data(tokenizer):
    tf = pytest.importorskip("tensorflow")
    backbone = kbz.BertBackbone(**SHALLOW)
    model = kbz.BertTextClassifier(backbone, 6, preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    model.compile(loss="mse")
    names = ["a", "b", "c", "d", "e", "f"]
    streamed = [(TEXTS, LABELS), (TEXTS, np.array(LABELS, "float32")[:, None]), (model.preprocessor(TEXTS), LABELS)]
    for data in [(TEXTS, names), *((tf.data.Dataset.from_tensors(each),) for each in streamed)]:
        with short_error("`loss` must take labels", "Received: loss='mse', y.shape=(6,"):
            model.fit(*data, verbose=0)
    assert model.class_names is None
    tagger = kbz.BertTokenClassifier(backbone, 3, preprocessor=kbz.BertWordPreprocessor(tokenizer, 16))
    tagger.compile(loss="mse")
    with short_error("`loss` must take labels", "Received: loss='mse', y.shape=(1, "):
        tagger.fit([["a", "bad", "film"]], [[0, 1, 2]], verbose=0)


@slow_on("tensorflow", "jax")
def test_losses_of_values_take_values(tasks):
    """In the outputs' shape, in memory too where a task has such targets; and a user's own loss takes what it likes."""
    rng = np.random.default_rng(0)
    for model, x, y in tasks:
        outputs = model.predict(x, verbose=0)
        shares = rng.uniform(size=outputs.shape).astype("float32")
        model.compile(keras.optimizers.SGD(0.0), loss="mse", metrics=None)
        weights = {"sample_weight": np.ones(y.shape[:2])} if model.weighs_places else {}
        found = model.test_on_batch(x, shares, **weights)
        assert np.ravel(found)[0] == pytest.approx(np.square(outputs - shares).mean(), rel=1e-4)
        model.compile(keras.optimizers.SGD(0.0), loss=lambda y, logits: keras.ops.mean(logits, -1), metrics=None)
        model.test_on_batch(x, y)
    classifier, x, y = tasks[0]
    logits = classifier.predict(x, verbose=0)
    classifier.compile(loss="mse", metrics=None)
    ones = np.eye(3)[y]
    found = np.ravel(classifier.evaluate(x, ones, verbose=0))[0]
    assert found == pytest.approx(np.square(logits - ones).mean(), rel=1e-5)

    class OfLabels(keras.losses.CategoricalCrossentropy):
        def call(self, y_true, y_pred):
            return super().call(keras.ops.one_hot(keras.ops.cast(y_true, "int32"), 3), y_pred)

    classifier.compile(loss=OfLabels(from_logits=True), metrics=None)
    found = np.ravel(classifier.evaluate(x, y, verbose=0))[0]
    assert found == pytest.approx(crossentropy(logits, y).mean(), rel=1e-5)


@pytest.mark.parametrize("metric", ["auc", METRICS.AUC(from_logits=True), METRICS.Precision(thresholds=0.0), "bce"])
def test_of_one_class_of_several_no_logit_is_looked_at_alone(metric, classifier):
    with pytest.raises(ValueError, match=r"`metrics` must use all logits of an example \(one class of several\)"):
        classifier.compile(metrics=[metric])
    classifier.compile(loss="categorical_crossentropy", metrics=[METRICS.Precision(top_k=1), METRICS.F1Score()])
    ones = np.eye(3)[LABELS]
    best = classifier.predict(TEXTS, verbose=0).argmax(-1)
    assert classifier.evaluate(TEXTS, ones, verbose=0)[1] == pytest.approx(np.mean(best == LABELS))


def test_what_is_a_users_own_is_theirs(several):
    class Own(METRICS.AUC):
        """With a sigmoid of its own, perhaps."""

    def share(y_true, y_pred):
        return keras.ops.mean(y_pred, axis=-1)

    def metrics():
        wrapped = METRICS.MeanMetricWrapper(partial(share), name="wrapped")
        return [Own(name="own"), wrapped, METRICS.F1Score(name="f1"), METRICS.TopKCategoricalAccuracy(2, name="top")]

    several.compile(metrics=[share, *metrics()])
    found = several.evaluate(TEXTS, ONES, verbose=0, return_dict=True)
    logits = several.predict(TEXTS, verbose=0)
    assert found["share"] == pytest.approx(logits.mean(), abs=1e-5)
    for metric in metrics():
        metric.update_state(ONES, logits)
        np.testing.assert_allclose(found[metric.name], numpy(metric.result()), atol=1e-5, err_msg=metric.name)


def test_metrics_of_numbers_stay(tokenizer):
    regressor = kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW), preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    regressor.compile(metrics=["mae", METRICS.BinaryAccuracy(threshold=0.5)])
    numbers = regressor.predict(TEXTS, verbose=0)
    _, error, share = regressor.evaluate(TEXTS, np.array(LABELS, "float32"), verbose=0)
    assert error == pytest.approx(np.abs(numbers - LABELS).mean(), rel=1e-5)
    assert share == pytest.approx(np.mean((numbers > 0.5) == LABELS))

"""The classifier: what `fit`, `evaluate` and `predict` take and give, and what they refuse."""

import _thread
import json
import signal
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import keras
import numpy as np
import pandas
import pytest

import keras_bert_zoo as kbz
from tests.helpers import (
    LABELS,
    SHALLOW,
    TEXTS,
    TINY,
    Batches,
    check_saving,
    crossentropy,
    numpy,
    random_inputs,
    randomise,
    short_error,
    slow_on,
    streams,
)


@pytest.fixture
def still(classifier):
    """A classifier without dropout."""
    backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)
    return randomise(kbz.BertTextClassifier(backbone, 3, dropout=0.0, preprocessor=classifier.preprocessor))


def tf_datasets(batch):
    """Return this batch as a data set of TensorFlow, but only on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return []
    import tensorflow as tf

    return [tf.data.Dataset.from_tensors(batch)]


def logits_one_by_one(classifier, texts, pairs=None):
    """Compute the logits of each example on its own, so without padding and in order."""
    rows = []
    for i in range(len(texts)):
        x = texts[i : i + 1] if pairs is None else (texts[i : i + 1], pairs[i : i + 1])
        rows.append(numpy(classifier(classifier.preprocessor(x))))
    return np.concatenate(rows)


@slow_on("jax")
@pytest.mark.parametrize(
    "options, batches", [({}, [96, 4]), ({"batch_size": 32}, [32, 32, 32, 4]), ({"steps": 2}, [32, 32])]
)
def test_without_a_batch_size_short_texts_are_predicted_more_at_once(classifier, options, batches):
    sizes = []

    class Sizes(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            sizes.append(len(logs["outputs"]))

    texts = [TEXTS[3 * (i % 2)] for i in range(100)]  # All have as many tokens.
    logits = classifier.predict(texts, callbacks=[Sizes()], verbose=0, **options)
    assert sizes == batches
    np.testing.assert_allclose(logits, classifier.predict(texts, batch_size=7, verbose=0)[: len(logits)], atol=1e-5)


@slow_on("jax")
@pytest.mark.parametrize("batch_size", [2, 4, None])
def test_predictions_come_in_the_order_given(classifier, batch_size):
    randomise(classifier)
    expected = logits_one_by_one(classifier, TEXTS)
    assert len(np.unique(expected.round(5), axis=0)) == len(TEXTS)
    np.testing.assert_allclose(classifier.predict(TEXTS, batch_size, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(classifier.predict(np.array(TEXTS), batch_size, verbose=0), expected, atol=1e-5)
    pairs = logits_one_by_one(classifier, TEXTS, TEXTS[::-1])
    assert np.abs(pairs - expected).max() > 1e-3
    np.testing.assert_allclose(classifier.predict((TEXTS, TEXTS[::-1]), batch_size, verbose=0), pairs, atol=1e-5)


def test_steps_takes_the_first_examples(classifier):
    randomise(classifier)
    expected = logits_one_by_one(classifier, TEXTS)
    np.testing.assert_allclose(classifier.predict(TEXTS, 2, verbose=0, steps=2), expected[:4], atol=1e-5)


def test_evaluate_is_loss_and_accuracy(classifier):
    randomise(classifier)
    logits = logits_one_by_one(classifier, TEXTS)
    scores = classifier.evaluate(TEXTS, LABELS, batch_size=2, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == LABELS))
    assert scores["loss"] == pytest.approx(crossentropy(logits, LABELS).mean(), abs=1e-5)
    weights = np.array([1, 0, 0, 2, 0, 1.0])
    scores = classifier.evaluate(TEXTS, LABELS, sample_weight=weights, verbose=0, return_dict=True)
    assert scores["accuracy"] == pytest.approx(np.average(logits.argmax(-1) == LABELS, weights=weights))


@slow_on("jax")
def test_ready_arrays_text_and_tf_data_give_the_same(classifier):
    tf = pytest.importorskip("tensorflow")
    randomise(classifier)
    expected = logits_one_by_one(classifier, TEXTS)
    arrays = classifier.preprocessor(TEXTS)
    np.testing.assert_allclose(classifier.predict(arrays, 4, verbose=0), expected, atol=1e-5)
    bare = kbz.BertTextClassifier(classifier.backbone, num_classes=3, preprocessor=None)
    bare.set_weights(classifier.get_weights())
    np.testing.assert_allclose(bare.predict(arrays, 4, verbose=0), expected, atol=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(4)
    np.testing.assert_allclose(classifier.predict(dataset, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(
        bare.predict(tf.data.Dataset.from_tensor_slices(arrays).batch(4), verbose=0), expected, atol=1e-5
    )
    scores = classifier.evaluate(TEXTS, LABELS, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(4)
    np.testing.assert_allclose(classifier.evaluate(dataset, verbose=0), scores, rtol=1e-5)
    pairs = tf.data.Dataset.from_tensor_slices(((TEXTS, TEXTS[::-1]), LABELS)).batch(4)
    np.testing.assert_allclose(
        classifier.evaluate(pairs, verbose=0), classifier.evaluate((TEXTS, TEXTS[::-1]), LABELS, verbose=0), rtol=1e-5
    )
    assert len(classifier.fit(dataset, epochs=2, verbose=0).history["loss"]) == 2


def test_a_loss_of_ones_own_is_the_only_one(classifier):
    """None is Keras' None, not the defaults that the constructor compiles with."""

    class Own(kbz.BertTextClassifier):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.square(y_pred))

    own = Own(classifier.backbone, 3, preprocessor=classifier.preprocessor)
    own.compile(loss=None, metrics=None)
    expected = np.mean(own.predict(TEXTS, verbose=0) ** 2)
    scores = own.evaluate(own.batches(TEXTS, shuffle=False), verbose=0, return_dict=True)
    assert scores == {"loss": pytest.approx(expected, rel=1e-5)}
    assert own.loss is None


EASY = ["good", "bad", "a plot", "the cast", "warm", "cold"]


def overfit(classifier, x, y, **options):
    classifier.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3), bias_correction=True))
    return classifier.fit(x, y, batch_size=6, epochs=150, verbose=0, **options)


def wide_backbone():
    """Make a backbone that is wide enough to learn six texts in a moment."""
    return kbz.BertBackbone(**{**TINY, "hidden_dim": 32, "intermediate_dim": 64}, dropout=0.0, attention_dropout=0.0)


def test_fit_learns_from_text_names_and_pairs(tokenizer):
    def fresh(**options):
        preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
        return kbz.BertTextClassifier(wide_backbone(), preprocessor=preprocessor, **options)

    names = [["warm", "cold", "so so"][label] for label in LABELS]
    named = fresh(num_classes=3)
    history = overfit(named, EASY, names, validation_data=(EASY, names), validation_freq=50).history
    assert named.class_names == ["cold", "so so", "warm"]
    assert history["val_accuracy"][-1] > 0.8  # half of the labels are the same: guessing gives 0.5
    best = named.predict(EASY, verbose=0).argmax(-1)
    assert [ranked[0][0] for ranked in named.classify(EASY)] == [named.class_names[number] for number in best]
    for ranked in named.classify(EASY):
        assert sum(probability for _, probability in ranked) == pytest.approx(1, abs=1e-5)
    # The first texts are all the same: only the second tells the classes apart.
    paired = fresh(class_names=["a", "b", "c"])
    same = ["it is"] * len(EASY)
    overfit(paired, (same, EASY), LABELS)
    assert paired.evaluate((same, EASY), LABELS, verbose=0)[1] > 0.8


def test_classes_without_names_are_called_by_their_numbers(classifier):
    logits = randomise(classifier).predict(TEXTS, verbose=0)
    for ranked, row in zip(classifier.classify(TEXTS), logits, strict=True):
        assert [name for name, _ in ranked] == [str(number) for number in np.argsort(-row)]


@slow_on("tensorflow", "jax")
def test_multi_label(tokenizer):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    names = ["film", "praise", "length"]
    classifier = kbz.BertTextClassifier(wide_backbone(), class_names=names, multi_label=True, preprocessor=preprocessor)
    sets = [["film", "praise"], [], ["length"], ["praise"], ["praise"], ["length", "film"]]
    ones = np.array([[name in row for name in names] for row in sets], "float32")
    column = np.empty(6, object)  # As pandas has it.
    column[:] = sets
    for given in (sets, column):
        np.testing.assert_array_equal(classifier.encode_targets(given, 6), ones)
    randomise(classifier)
    logits = logits_one_by_one(classifier, EASY).astype("float64")
    scores = classifier.evaluate(EASY, sets, batch_size=2, verbose=0, return_dict=True)
    expected = np.mean(np.log1p(np.exp(logits)) - ones * logits)
    assert scores["loss"] == pytest.approx(expected, abs=1e-5)
    assert scores["accuracy"] == pytest.approx(np.mean((logits > 0) == ones))
    history = overfit(classifier, EASY, ones).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    logits = classifier.predict(EASY, verbose=0)
    for ranked, row in zip(classifier.classify(EASY), logits, strict=True):
        likely = {name for name, probability in ranked if probability > 0.5}
        assert likely == {name for name, logit in zip(names, row, strict=True) if logit > 0}


@slow_on("tensorflow", "jax")
def test_class_weight_and_validation_split(classifier):
    randomise(classifier)
    np.testing.assert_array_equal(
        classifier.weigh_classes(np.array([0, 1, 2, 1], "int32"), {1: 3.0, 2: 0.5}), [1, 3, 0.5, 3]
    )
    history = classifier.fit(TEXTS, LABELS, validation_split=1 / 3, class_weight={0: 2.0}, verbose=0).history
    before = classifier.evaluate(TEXTS[4:], LABELS[4:], verbose=0, return_dict=True)
    assert history["val_loss"][-1] == pytest.approx(before["loss"], abs=1e-5)


def test_class_weight_weighs_the_loss(still):
    still.compile(optimizer=keras.optimizers.SGD(0.0))
    losses = crossentropy(logits_one_by_one(still, TEXTS), LABELS)
    weights = np.array([1.0, 3.0, 0.5])[LABELS]
    objects = {"sample_weight": weights.astype(object)}
    for given in ({"class_weight": {1: 3.0, np.int64(2): 0.5}}, {"sample_weight": weights}, objects):
        history = still.fit(TEXTS, LABELS, verbose=0, **given).history
        assert history["loss"][0] == pytest.approx(np.mean(losses * weights), abs=1e-5)
    arrays = still.preprocessor(TEXTS)
    for batches in streams((arrays, np.array(LABELS), None)):
        history = still.fit(batches, class_weight={1: 3.0, 2: 0.5}, steps_per_epoch=1, verbose=0).history
        assert history["loss"][0] == pytest.approx(np.mean(losses * weights), abs=1e-5)
    still.class_names = ["no", "yes", "so"]
    history = still.fit(still.batches(TEXTS, LABELS), class_weight={"yes": 3.0, "so": 0.5}, verbose=0).history
    assert history["loss"][0] == pytest.approx(np.mean(losses * weights), abs=1e-5)
    with short_error("`class_weight` must have each class once. Received: class_weight with 1 again"):
        still.fit(TEXTS, LABELS, class_weight={"yes": 3.0, 1: 0.5})


@slow_on("tensorflow", "jax")
def test_class_weight_and_targets_for_a_loss_of_one_s_own(still):
    losses = crossentropy(logits_one_by_one(still, TEXTS), LABELS)
    expected = np.mean(losses * np.array([1.0, 3.0, 0.5])[LABELS])
    arrays, column = still.preprocessor(TEXTS), np.array(LABELS)[:, None]
    for loss, y in (
        (lambda y, logits: keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True), column),
        ("categorical_crossentropy", np.eye(3, dtype="float32")[LABELS]),
    ):
        still.compile(keras.optimizers.SGD(0.0), loss=loss, metrics=None)
        found = still.train_on_batch(arrays, y, class_weight={1: 3.0, 2: 0.5})
        assert np.ravel(found)[0] == pytest.approx(expected, abs=1e-5)
        weighted = np.mean(losses * WEIGHTS * np.array([1.0, 3.0, 0.5])[LABELS])
        for stream in [*streams((arrays, y, WEIGHTS)), *tf_datasets((arrays, y, WEIGHTS))]:
            history = still.fit(stream, class_weight={1: 3.0, 2: 0.5}, steps_per_epoch=1, verbose=0).history
            assert history["loss"][0] == pytest.approx(weighted, abs=1e-5)
        bad = arrays, y, WEIGHTS * [1, np.nan, 1, 1, 1, 1]
        for first, second in zip(tf_datasets((arrays, y, WEIGHTS)), tf_datasets(bad), strict=True):
            with pytest.raises(Exception, match="`sample_weight` must hold finite numbers"):
                still.fit(first.concatenate(second), verbose=0)


def test_class_weight_needs_targets(still):
    still.compile(optimizer=keras.optimizers.SGD(0.0), loss=None)
    arrays = still.preprocessor(TEXTS)
    for batches in (*streams(arrays), *streams((arrays, None))):
        with pytest.raises(ValueError, match=r"`class_weight` needs targets\. Received: batches of inputs alone"):
            still.fit(batches, class_weight={1: 3.0}, verbose=0)


def test_class_weight_and_none_in_tf_data(still):
    """Keras takes None in place of targets and of weights."""
    tf = pytest.importorskip("tensorflow")
    texts, labels = tf.data.Dataset.from_tensors(TEXTS), tf.data.Dataset.from_tensors(LABELS)
    still.compile(optimizer=keras.optimizers.SGD(0.0))
    losses = crossentropy(logits_one_by_one(still, TEXTS), LABELS) * np.array([1.0, 3.0, 0.5])[LABELS]
    data = tf.data.Dataset.zip(texts, labels).map(lambda x, y: (x, y, None))
    history = still.fit(data, class_weight={1: 3.0, 2: 0.5}, verbose=0).history
    assert history["loss"][0] == pytest.approx(np.mean(losses), abs=1e-5)
    still.compile(optimizer=keras.optimizers.SGD(0.0), loss=None)
    arrays = tf.data.Dataset.from_tensors(still.preprocessor(TEXTS))
    for data in (texts, arrays, arrays.map(lambda x: (x, None))):
        with pytest.raises(ValueError, match=r"`class_weight` needs targets\. Received: batches of inputs alone"):
            still.fit(data, class_weight={1: 3.0}, verbose=0)


@slow_on("tensorflow", "jax")
def test_validation_steps_takes_the_first_examples(classifier):
    randomise(classifier)
    history = classifier.fit(
        TEXTS, LABELS, validation_data=(TEXTS, LABELS), validation_steps=1, validation_batch_size=2, verbose=0
    ).history
    expected = classifier.evaluate(TEXTS[:2], LABELS[:2], verbose=0)[0]
    assert history["val_loss"][0] == pytest.approx(expected, abs=1e-5)


def test_same_seed_same_weights(tokenizer):
    def run():
        keras.utils.set_random_seed(7)
        preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
        classifier = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), num_classes=3, preprocessor=preprocessor)
        classifier.fit(TEXTS * 4, LABELS * 4, batch_size=4, epochs=2, verbose=0)
        return classifier.predict(TEXTS, verbose=0)

    np.testing.assert_array_equal(run(), run())


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_gives_float32_logits(policy, tokenizer, tmp_path):
    backbone = kbz.BertBackbone(**SHALLOW, dtype=policy)
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    classifier = kbz.BertTextClassifier(backbone, num_classes=3, preprocessor=preprocessor)
    scaled = isinstance(classifier.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    classifier.compile(keras.optimizers.SGD(0.1), auto_scale_loss=False)
    assert isinstance(classifier.optimizer, keras.optimizers.SGD)
    classifier.save(tmp_path / "unscaled.keras")
    assert isinstance(keras.models.load_model(tmp_path / "unscaled.keras").optimizer, keras.optimizers.SGD)
    classifier.compile(optimizer=None)
    assert np.isfinite(classifier.evaluate(TEXTS, LABELS, verbose=0)[0])
    classifier.compile()
    randomise(classifier).fit(TEXTS, LABELS, epochs=3, verbose=0)
    logits = classifier.predict(TEXTS, verbose=0)
    assert logits.dtype == "float32"
    exact = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), num_classes=3, preprocessor=preprocessor)
    exact.set_weights(classifier.get_weights())
    np.testing.assert_allclose(logits, exact.predict(TEXTS, verbose=0), atol=0.02)


def test_losses_are_scaled_for_the_backbones_precision(backbone):
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        exact, half = (kbz.BertTextClassifier(b, 3) for b in (backbone, kbz.BertBackbone(**SHALLOW)))
    finally:
        keras.config.set_dtype_policy(policy)
    assert type(exact.optimizer) is kbz.AdamW
    assert type(half.optimizer) is kbz.LossScaleOptimizer
    by_part = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_float16")
    mapped = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW, dtype=by_part), 3)
    assert type(mapped.optimizer) is kbz.LossScaleOptimizer


@pytest.mark.parametrize(
    "kind, options",
    [
        (kbz.BertTextClassifier, {"num_classes": 3}),
        (kbz.BertTextRegressor, {}),
        (kbz.BertTokenClassifier, {"num_classes": 3}),
        (kbz.BertMultipleChoice, {}),
    ],
)
def test_the_policy_of_a_program_changes_no_head(kind, options):
    """A model's file does not hold that policy, and another program may have another."""
    inputs = random_inputs()
    if kind is kbz.BertMultipleChoice:
        inputs = {name: np.stack([array, array], axis=1) for name, array in inputs.items()}
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = randomise(kind(kbz.BertBackbone(**SHALLOW, dtype="float32"), **options))
    finally:
        keras.config.set_dtype_policy(policy)
    loaded = type(model).from_config(model.get_config())
    loaded.set_weights(model.get_weights())
    np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(model(inputs)))


def test_double_precision_trains_beside_a_head_in_single():
    """Gradients of two dtypes have one norm: both sides are scaled alike, so that a step is that of float32."""
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 where it is configured before it starts.")
    steps = []
    for dtype in ("float32", "float64"):
        backbone = kbz.BertBackbone(**{**SHALLOW, "dropout": 0.0, "attention_dropout": 0.0}, dtype=dtype)
        model = randomise(kbz.BertTextClassifier(backbone, 3, dropout=0.0))
        model.compile(kbz.AdamW(0.01, global_clipnorm=0.01, weight_decay=0.0, epsilon=0.01))
        before = model.get_weights()
        model.fit(random_inputs(), [0, 1, 2], verbose=0)
        steps.append([after - value for after, value in zip(model.get_weights(), before, strict=True)])
    assert max(np.abs(step).max() for step in steps[0]) > 1e-4
    for one, other in zip(*steps, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-7)


def test_a_loss_is_of_logits(classifier):
    """Given by its name, Keras' loss would take logits for probabilities, and train on."""
    expected = classifier.evaluate(TEXTS, LABELS, verbose=0)
    losses = keras.losses
    for loss in (
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        losses.sparse_categorical_crossentropy,
        losses.SparseCategoricalCrossentropy,
    ):
        classifier.compile(loss=loss)
        np.testing.assert_allclose(classifier.evaluate(TEXTS, LABELS, verbose=0), expected, rtol=1e-6)
    for loss in ("bce", "BCE", losses.binary_crossentropy, "binary_focal_crossentropy", "CategoricalFocalCrossentropy"):
        classifier.compile(loss=loss)
        assert classifier.loss.get_config()["from_logits"]
    for loss in ("crossentropy", "ce"):
        with pytest.raises(ValueError) as error:
            classifier.compile(loss=loss)
        assert str(error.value) == (
            f'`loss` must name the cross-entropy, such as "sparse_categorical_crossentropy". Received: loss={loss!r}'
        )

    def binary_crossentropy(y_true, y_pred):
        """Named like Keras' function, but another."""

    classifier.compile(loss=binary_crossentropy)
    assert classifier.loss is binary_crossentropy

    class Own(keras.losses.CategoricalCrossentropy):
        """With a softmax of its own, perhaps."""

    classifier.compile(loss=Own())
    with pytest.raises(ValueError) as error:
        classifier.compile(loss=keras.losses.CategoricalCrossentropy())
    assert str(error.value) == (
        "`loss` must be of logits: use CategoricalCrossentropy(from_logits=True). Received: one with from_logits=False"
    )


def test_targets_may_be_shares_of_classes(classifier):
    shares = np.random.default_rng(0).dirichlet(np.ones(3), len(TEXTS)).astype("float32")
    with pytest.raises(ValueError, match=r"or `loss` must take class probabilities, as .* Received: y\.shape=\(6, 3\)"):
        classifier.fit(TEXTS, shares, verbose=0)
    classifier.compile(kbz.AdamW(1e-2), loss="categorical_crossentropy")
    logits = classifier.predict(TEXTS, verbose=0).astype("float64")
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    loss, accuracy = classifier.evaluate(TEXTS, shares, verbose=0)
    assert loss == pytest.approx(-(shares * np.log(probabilities)).sum(-1).mean(), rel=1e-5)
    assert accuracy == pytest.approx((logits.argmax(-1) == shares.argmax(-1)).mean())
    before = numpy(classifier.weights[0])
    classifier.fit(TEXTS, shares, verbose=0)
    assert (numpy(classifier.weights[0]) != before).any()
    for wrong, options, words in (
        (shares * np.nan, {}, "`y` must hold finite numbers. Received: y with "),
        (shares.astype("float64") * 1e39, {}, "`y` must hold finite numbers. Received: y with "),
        (shares, {"class_weight": {1: 2.0}}, "`class_weight` needs one class per example. Received: y.shape=(6, 3)"),
    ):
        with short_error(words):
            classifier.fit(TEXTS, wrong, verbose=0, **options)


def test_saves(tokenizer, tmp_path):
    def build():
        preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
        return kbz.BertTextClassifier(
            kbz.BertBackbone(**SHALLOW), class_names=["a", "b"], dropout=0.2, preprocessor=preprocessor
        )

    loaded = check_saving(build, random_inputs(), tmp_path)
    assert loaded.head_config() == build().head_config()
    assert loaded.predict(TEXTS, verbose=0).shape == (6, 2)


def test_training_goes_on_after_loading(classifier, tmp_path):
    classifier.compile(optimizer=kbz.AdamW(1e-3))
    classifier.fit(TEXTS, LABELS, verbose=0)
    classifier.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(numpy(loaded.optimizer.iterations)) == 1
    saved, restored = classifier.optimizer.variables, loaded.optimizer.variables
    assert len(saved) == len(restored) > 40
    for x, y in zip(saved, restored, strict=True):
        np.testing.assert_array_equal(numpy(x), numpy(y))


BAD_FIT = [
    ((None, LABELS), "`x` must be given. Received: x=None"),
    ((TEXTS, None), "`y` must be given. Received: y=None"),
    (([], []), "`x` must hold at least one example"),
    (("a film", [0]), "(first, second). Received: x of type str; pass one text as [x]"),
    ((TEXTS, LABELS[:5]), "`y` must have the shape (6,), one label per example. Received: y.shape=(5,)"),
    ((TEXTS, np.eye(3)[LABELS]), "`y` must have the shape (6,)"),
    ((TEXTS, [0, 1, 2, 3, 0, 1]), "`y` must be in [0, 3). Received: y with 3"),
    ((TEXTS, [0, 1, 2, -1, 0, 1]), "`y` must be in [0, 3). Received: y with -1"),
    ((TEXTS, [0.5] * 6), "`y` must hold integers or class names. Received: y.dtype=float64"),
    ((TEXTS, [0, 1, 2, None, 0, 1]), "`y` must hold integers or class names. Received: y with NoneType and int"),
    ((TEXTS, ["a", "b", "c", "a", "b", float("nan")]), "`y` must hold integers or class names. Received: y with float"),
    ((TEXTS, ["a", "b", 1, "a", "b", "a"]), "`y` must hold integers or class names. Received: y with int"),
    ((TEXTS, ["a", "b"] * 3), "`y` must hold 3 different names"),
    ((TEXTS, [b"\xff"] * 6), "`y` must hold UTF-8 names. Received: b'\\xff'"),
    ((["a", None], [0, 1]), "`x` must hold strings. Received: x[1]=None of type NoneType"),
    ((["\ud800", "b"], [0, 1]), "`x` must hold valid Unicode. Received: x[0]"),
    (("a text", [0]), "`x` must be a list of strings"),
    (([1, 2], [0, 1]), "`x` must be a list of strings"),
    ((np.array([TEXTS]), [0]), "`x` must have one dimension. Received: x.shape=(1, 6)"),
    (
        ([("a", "b"), ("a", "c")], [0, 1]),
        "two such lists, a dict of arrays or a data set. Received: x[0] of type tuple",
    ),
    ((["a", b"\xff a"], [0, 1]), "`x` must hold UTF-8 texts. Received: b'\\xff a'"),
    ((("a", "b"), [0, 1]), "`x` must be a list of strings, or for pairs a tuple of two such lists"),
    (((TEXTS, TEXTS[:5]), LABELS), "`x` must hold as many first as second texts. Received: 6 and 5"),
    ((random_inputs(length=17), [0, 1, 2]), "`token_ids` must have at most 16 tokens per row"),
    (({**random_inputs(), "token_ids": np.full((3, 9), 40)}, [0, 1, 2]), "`token_ids` must be in [0, 40)"),
    (({**random_inputs(), "segment_ids": np.full((3, 9), -1)}, [0, 1, 2]), "`segment_ids` must be in [0, 2)"),
    (({**random_inputs(), "token_ids": [[2, 3], [2]]}, [0, 1, 2]), "`token_ids` must have rows of one length"),
    ((TEXTS, [["a"], ["a", "b"], [], ["a"], ["b"], ["c"]]), "`y` must have rows of one length. Received: rows of"),
]


def test_bad_data_leaves_the_model_usable(classifier):
    """All cases run on one model, which must survive each of them and still train."""
    before = [numpy(weight) for weight in classifier.weights]
    for arguments, words in BAD_FIT:
        runs = [classifier.fit, classifier.evaluate]
        if "`y`" not in words:
            runs.append(lambda x, y, verbose: classifier.predict(x, verbose=verbose))
        for run in runs:
            unnamed = run == classifier.evaluate and "different names" in words
            with short_error("as the classes have no names" if unnamed else words):
                run(*arguments, verbose=0)
    for weight, value in zip(classifier.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)
    assert classifier.class_names is None
    classifier.fit(TEXTS, LABELS, verbose=0)
    assert np.isfinite(classifier.predict(TEXTS, verbose=0)).all()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"sample_weight": [1.0]}, "`sample_weight` must have the shape (6,)"),
        (
            {"sample_weight": [1.0] * 5 + [np.nan]},
            "`sample_weight` must hold finite numbers. Received: sample_weight with nan",
        ),
        (
            {"sample_weight": [1.0] * 5 + [1e39]},
            "`sample_weight` must hold finite numbers. Received: sample_weight with 1e+39",
        ),
        ({"sample_weight": [[1.0], [1.0, 2.0]]}, "`sample_weight` must have rows of one length"),
        ({"sample_weight": ["a"] * 6}, "`sample_weight` must hold numbers. Received: sample_weight.dtype=<U1"),
        ({"class_weight": {5: 1.0}}, "`class_weight` must have classes as keys"),
        ({"class_weight": {1: np.nan}}, "`class_weight` must hold finite numbers. Received: class_weight[1]=nan"),
        ({"class_weight": {1: 1e39}}, "`class_weight` must hold finite numbers. Received: class_weight[1]=1e+39"),
        ({"class_weight": {1: "x"}}, "`class_weight` must hold finite numbers. Received: class_weight[1]='x'"),
        ({"class_weight": {1: 2.0}, "sample_weight": [1.0] * 6}, "`class_weight` and `sample_weight` exclude each"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer. Received: batch_size=0"),
        ({"batch_size": 1.5, "validation_split": 0.5, "validation_steps": 1}, "`batch_size` must be a positive int"),
        ({"validation_split": 1.5}, "`validation_split` must be a number in [0, 1)"),
        ({"epochs": None}, "`epochs` must be a positive integer. Received: epochs=None"),
        ({"initial_epoch": -1}, "`initial_epoch` must be an integer of at least 0. Received: initial_epoch=-1"),
        ({"validation_batch_size": 0}, "`validation_batch_size` must be a positive integer"),
        ({"validation_split": 0.9}, "`validation_split` must leave examples on both sides"),
        ({"steps_per_epoch": 1}, "`steps_per_epoch` must be None if the batches define their own epochs"),
        ({"batch_size": True}, "`batch_size` must be a positive integer. Received: batch_size=True"),
        ({"class_weight": [1.0, 2.0, 3.0]}, "`class_weight` must be a dict"),
        ({"validation_data": {"x": TEXTS}}, "`validation_data` must be (x, y)"),
        ({"validation_data": (TEXTS,)}, "`validation_data` must be (x, y)"),
        ({"validation_data": (TEXTS, [7] * 6)}, "`y` must be in [0, 3)"),
    ],
)
def test_bad_options(classifier, options, words):
    with short_error(words):
        classifier.fit(TEXTS, LABELS, verbose=0, **options)


def test_a_list_of_pairs_is_named_whatever_else_is_given(classifier):
    for x in (list(zip(TEXTS, TEXTS, strict=True)), [[text] for text in TEXTS]):
        for run in (classifier.fit, classifier.evaluate, lambda x, _, **options: classifier.predict(x, **options)):
            with pytest.raises(ValueError, match=r"`x` must be a list of strings.* Received: x\[0\] of type"):
                run(x, LABELS, batch_size=2)


def test_bad_streams_are_refused_before_anything_compiles(classifier):
    tf = pytest.importorskip("tensorflow")

    def stream(x, *rest):
        return tf.data.Dataset.from_tensor_slices((x, *rest)).batch(3)

    arrays = random_inputs()
    negative = {**arrays, "token_ids": np.full((3, 9), -1, "int32")}
    for data, words in [
        (stream(TEXTS, [7] * 6), "`y` must be in [0, 3). Received: y with 7"),
        (stream(TEXTS, ["a"] * 6), "as the classes have no names"),
        (stream(arrays, [0, 1, -1]), "`y` must be in [0, 3). Received: y with -1"),
        (stream(negative, [0, 1, 2]), "`token_ids` must be in [0, 40)"),
        (stream(random_inputs(length=17), [0, 1, 2]), "`token_ids` must have at most 16 tokens"),
        (stream([1.0, 2.0], [0, 1]), "`x` must be a data set of batches whose inputs are strings"),
        (stream((TEXTS,), LABELS), "`x` must be a data set of batches whose inputs are strings [batch], a pair"),
        (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)), "`x` must be a data set of batches"),
    ]:
        for run in (classifier.fit, classifier.evaluate):
            with short_error(words):
                run(data, verbose=0)
    with pytest.raises(ValueError, match="`y` must be part of the data set"):
        classifier.fit(stream(TEXTS, LABELS), LABELS, verbose=0)
    for run in (classifier.fit, classifier.evaluate, classifier.predict):
        with pytest.raises(
            ValueError, match=r"`batch_size` must be None if the data are batches already\. Received: b"
        ):
            run(stream(TEXTS, LABELS), batch_size=4, verbose=0)
    with short_error("`validation_batch_size` must be None if the data are batches already. Received: validation_"):
        classifier.fit(TEXTS, LABELS, validation_data=stream(TEXTS, LABELS), validation_batch_size=4, verbose=0)
    classifier.fit(stream(TEXTS, LABELS), verbose=0)


def test_a_count_of_classes_may_be_numpys():
    classifier = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), num_classes=np.array([0, 2, 1]).max() + 1)
    assert json.loads(json.dumps(classifier.head_config()))["num_classes"] == 3


@pytest.mark.parametrize("trained", [False, True])
def test_a_clone_is_a_plain_model_compiled_alike(classifier, trained):
    if trained:
        classifier.fit(TEXTS, LABELS, verbose=0)
    clone = keras.models.clone_model(classifier)
    clone.set_weights(classifier.get_weights())
    assert type(clone.optimizer) is type(classifier.optimizer)
    x = random_inputs()
    # Not by `predict`, in which a task rounds differently; on TensorFlow only a task does.
    np.testing.assert_array_equal(numpy(clone(x)), numpy(classifier(x)))


def test_it_may_be_compiled_like_an_ordinary_model(classifier):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.125), loss, metrics=["accuracy"])
    classifier.compile_from_config(model.get_compile_config())
    assert isinstance(classifier.optimizer, keras.optimizers.SGD)
    assert classifier.optimizer.learning_rate == 0.125
    expected = crossentropy(logits_one_by_one(classifier, TEXTS), np.array(LABELS)).mean()
    assert classifier.evaluate(TEXTS, LABELS, verbose=0)[0] == pytest.approx(expected, rel=1e-5)


def test_a_functional_model_over_it_is_saved(classifier, tmp_path):
    model = keras.Model(classifier.input, keras.layers.Softmax()(classifier.output))
    model.save(tmp_path / "model.keras")
    x = random_inputs()
    np.testing.assert_array_equal(numpy(keras.models.load_model(tmp_path / "model.keras")(x)), numpy(model(x)))


def test_without_an_optimizer_it_is_saved_too(classifier, tmp_path):
    classifier.compile(optimizer=None)
    classifier.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").optimizer is None


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch loads")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras' own `predict` says so, too.
def test_data_that_come_once_are_all_predicted(classifier):
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __init__(self):
            self.texts = iter(TEXTS)

        def __iter__(self):
            return ((classifier.preprocessor([text]), np.array([0])) for text in self.texts)

    expected = logits_one_by_one(classifier, TEXTS)
    found = classifier.predict(DataLoader(Stream(), batch_size=None), verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    loader = DataLoader(list(classifier.preprocessor(TEXTS)["token_ids"]), batch_size=None)  # Of no class we know.
    with pytest.raises(ValueError, match="`x` must hold batches of ready arrays"):
        classifier.predict(loader, verbose=0)


def test_what_else_keras_takes_has_ready_batches(classifier):
    """About strings in a batch, Keras says that a dtype is invalid or that they have no shape."""

    def make(batch):
        return [Batches(batch), (batch for _ in range(2))]

    raw = [*make((TEXTS, np.array(LABELS))), *make(TEXTS)]
    ready = make((random_inputs(), np.array([0, 1, 2])))
    if keras.backend.backend() == "torch":
        from torch.utils.data import DataLoader

        raw.append(DataLoader(list(zip(TEXTS, LABELS, strict=True)), batch_size=2))
        ready.append(DataLoader([({name: a[i] for name, a in random_inputs().items()}, i) for i in range(3)], 3))
    for data in raw:
        with pytest.raises(ValueError, match=r"`x` must hold batches of ready arrays.*Received: batches whose inputs"):
            classifier.fit(data, verbose=0)
    losses = [classifier.evaluate(data, steps=1, verbose=0) for data in ready]
    np.testing.assert_allclose(losses, [losses[0]] * len(losses), rtol=1e-6)
    drawn = iter(range(2))
    classifier.predict((({**random_inputs()},) for _ in drawn), steps=2, verbose=0)
    assert next(drawn, None) is None  # No batch is lost, and each is drawn once.


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_in_half_precision_predict_and_are_not_trained(dtype):
    """Adam's 0.999 does not fit into three digits: little would be learned, and in float16 squares vanish."""
    classifier = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW, dtype=dtype), num_classes=3)
    assert np.isfinite(classifier.predict(random_inputs(), verbose=0)).all()
    with pytest.raises(ValueError, match=f'`dtype` must be "mixed_{dtype}" to train'):
        classifier.fit(random_inputs(), [0, 1, 2], verbose=0)


def test_names_stream_too(tokenizer):
    tf = pytest.importorskip("tensorflow")
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    classifier = kbz.BertTextClassifier(
        kbz.BertBackbone(**SHALLOW), class_names=["no", "yes"], preprocessor=preprocessor
    )
    names = ["yes", "no", "no", "yes", "no", "yes"]
    stream = tf.data.Dataset.from_tensor_slices((TEXTS, names)).batch(4)
    expected = classifier.evaluate(TEXTS, names, verbose=0)
    np.testing.assert_allclose(classifier.evaluate(stream, verbose=0), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "sets, words",
    [
        ([["a"], "b"], "`y` must hold a list of names per example. Received: y[1]='b'"),
        ([["a"], None], "Received: y[1]=None"),
        ([["a"], ["c"]], "`y` must hold names of class_names=['a', 'b']. Received: y[1] with 'c'"),
        ([["a"], [["b"]]], "`y` must hold names of class_names=['a', 'b']. Received: y[1] with ['b']"),
        ([["a"]], "`y` must have one row per example, 2. Received: 1"),
        ([[1, 0], [0, 2]], "`y` must hold 0 and 1 only with multi_label. Received: y with 2"),
        ([1, 0], "`y` must have the shape (2, 2) with multi_label"),
        (5, "`y` must have the shape (2, 2) with multi_label"),
    ],
)
def test_bad_label_sets(backbone, sets, words):
    classifier = kbz.BertTextClassifier(backbone, class_names=["a", "b"], multi_label=True)
    with short_error(words):
        classifier.encode_targets(sets, 2)
    np.testing.assert_array_equal(classifier.encode_targets([[], []], 2), np.zeros((2, 2)))
    unnamed = kbz.BertTextClassifier(backbone, num_classes=2, multi_label=True)
    with pytest.raises(ValueError, match=r"`class_names` must be given if `y` holds names .* Received: y with 'a'"):
        unnamed.encode_targets([[], ["a"]], 2)


def test_label_sets_of_columns(backbone):
    """Rows of parquet's columns are arrays, and Hugging Face's columns are sequences that are no lists."""

    class Column(Sequence):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]

    def objects(rows):
        array = np.empty(len(rows), object)
        for i, row in enumerate(rows):
            array[i] = row
        return array

    classifier = kbz.BertTextClassifier(backbone, class_names=["a", "b"], multi_label=True)
    names = [np.array(row, object) for row in (["b"], [], ["a", "b"])]
    ones = [np.array(row) for row in ([0, 1], [0, 0], [1, 1])]
    columns = [Column([["b"], [], ["a", "b"]])]
    columns += [kind(rows) for kind in (list, tuple, Column, objects) for rows in (names, ones)]
    columns += [[kind(row) for row in names] for kind in (set, frozenset)]
    for column in columns:
        np.testing.assert_array_equal(classifier.encode_targets(column, 3), ones)
    with short_error("`y` must hold names of class_names=['a', 'b']. Received: y[2] with 'c'"):
        classifier.encode_targets([*names[:2], np.array(["c"], object)], 3)


def test_a_loss_of_shares_takes_no_labels(classifier):
    classifier.compile(loss="categorical_crossentropy")
    with pytest.raises(ValueError, match=r"or `y` have the outputs' shape, \(None, 3\)\. .*, y\.shape=\(6,\)"):
        classifier.fit(TEXTS, LABELS, verbose=0)


def test_a_hugging_face_data_set_has_columns(classifier):
    rows = pytest.importorskip("datasets").Dataset.from_dict({"text": TEXTS, "label": LABELS})
    with pytest.raises(ValueError, match=r"`x` must be columns of a Hugging Face data set.* of type Dataset"):
        classifier.fit(rows, verbose=0)
    classifier.fit(rows["text"], rows["label"], verbose=0)


def test_names_from_refused_data_are_forgotten(classifier):
    with pytest.raises(ValueError, match=r"`y` must hold UTF-8 names\. Received: '.ud800'"):
        classifier.fit(TEXTS, ["a", "b", "\ud800"] * 2, verbose=0)
    assert classifier.class_names is None
    with pytest.raises(ValueError, match="`y` must hold names of"):
        classifier.fit(TEXTS, ["a", "b", "c"] * 2, validation_data=(TEXTS, ["q"] * 6), verbose=0)
    assert classifier.class_names is None


def test_names_stay_where_training_breaks_off(classifier):
    def fail(batch, logs):
        raise ValueError("disk full")

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    with pytest.raises(ValueError, match="disk full"):
        classifier.fit(TEXTS, ["a", "b", "c"] * 2, verbose=0, callbacks=[callback])
    assert classifier.class_names == ["a", "b", "c"]


def test_labels_of_objects(classifier):
    np.testing.assert_array_equal(classifier.encode_targets(np.array(LABELS, object), 6), LABELS)
    classifier.class_names = ["a", "b", "c"]
    for kind in (object, str, bytes):
        names = np.array(["c", "a", "b"] * 2, dtype=kind)
        np.testing.assert_array_equal(classifier.encode_targets(names, 6), [2, 0, 1] * 2)


def test_shares_of_classes_as_a_column(classifier):
    """A data frame's column of lists or arrays has one dimension, of objects."""
    classifier.compile(loss="categorical_crossentropy")
    shares = np.random.default_rng(0).dirichlet([1, 1, 1], 6).astype("float32")
    for rows in (shares.tolist(), list(shares)):
        np.testing.assert_array_equal(classifier.encode_targets(pandas.Series(rows), 6), shares)
    np.testing.assert_array_equal(classifier.encode_targets(pandas.Series([[label] for label in LABELS]), 6), LABELS)
    with short_error("`y` must hold integers or class names. Received: y[3]=nan"):
        classifier.encode_targets(pandas.Series([0, 1, 2, None, 1, 0], dtype="Int64"), 6)
    with short_error("`y` must hold integers or class names. Received: y with list"):
        classifier.encode_targets(pandas.Series([[0.5], [0.5, 0.5]] * 3), 6)


def test_a_column_of_weights_and_one_of_pyarrow(classifier):
    pyarrow = pytest.importorskip("pyarrow")
    weights = np.arange(6.0)
    expected = classifier.evaluate(TEXTS, LABELS, sample_weight=weights, verbose=0)
    found = classifier.evaluate(pyarrow.array(TEXTS), pyarrow.array(LABELS), sample_weight=weights[:, None], verbose=0)
    assert found == pytest.approx(expected)
    classifier.class_names = ["a", "b", "c"]
    names = pyarrow.array(["c", "a", "b"] * 2)
    for column in (names, pyarrow.chunked_array([names]), names.dictionary_encode()):
        np.testing.assert_array_equal(classifier.encode_targets(column, 6), [2, 0, 1] * 2)


def test_batches_to_train_on_are_ready_arrays(still):
    with pytest.raises(
        ValueError, match=r"Inputs must be a dict of token_ids, segment_ids, padding_mask\. Received: l"
    ):
        still.train_on_batch(TEXTS, np.array(LABELS))
    with pytest.raises(ValueError, match="Inputs must be a dict"):
        still.test_on_batch(TEXTS, np.array(LABELS))
    losses = crossentropy(logits_one_by_one(still, TEXTS), LABELS)
    still.compile(keras.optimizers.SGD(0.1))  # The default's schedule needs to know the steps of `fit`.
    loss, _ = still.train_on_batch(still.preprocessor(TEXTS), np.array(LABELS))
    assert loss == pytest.approx(losses.mean(), abs=1e-5)


def test_a_callback_predicts_by_the_model_it_was_made_for(classifier):
    """On JAX `fit` has taken the model's weights, and Keras gives them back only to `callback.model`."""
    seen = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(classifier.predict(TEXTS, verbose=0))
    )
    classifier.compile(keras.optimizers.SGD(0.1))
    classifier.fit(TEXTS, LABELS, batch_size=3, verbose=0, callbacks=[callback])
    assert len(seen) == 2
    assert (seen[0] != seen[1]).any()
    np.testing.assert_allclose(seen[1], classifier.predict(TEXTS, verbose=0), atol=1e-6)


def test_a_batch_needs_a_rate_of_its_own(classifier):
    """When `fit` is over, its schedule has come to a rate of 0, and would train nothing."""
    classifier.fit(TEXTS, LABELS, verbose=0)
    with pytest.raises(ValueError, match=r"`optimizer` must have a learning rate, or a schedule with total_steps"):
        classifier.train_on_batch(random_inputs(), np.array([0, 1, 2]))
    classifier.test_on_batch(random_inputs(), np.array([0, 1, 2]))


@pytest.mark.parametrize(
    "inputs, y, words",
    [
        (random_inputs(), [0, 1, -1], "`y` must be in [0, 3). Received: y with -1"),
        (random_inputs(), [[0], [1], [3]], "`y` must be in [0, 3). Received: y with 3"),
        (random_inputs(), [0.5, 1.5, 2.0], "`y` must hold integers or class names. Received: y.dtype=float"),
        (random_inputs(vocabulary_size=400), [0, 1, 2], "`token_ids` must be in [0, 40). Received: token_ids with "),
    ],
)
def test_bad_values_in_what_streams(classifier, inputs, y, words):
    """The first batch is checked before anything compiles; a later one stops the run."""
    classifier.compile(keras.optimizers.SGD(0.1))
    good, bad = (random_inputs(), np.array([0, 1, 2])), (inputs, np.array(y))
    for data in streams(bad):
        with short_error(words):
            classifier.fit(data, verbose=0)
    for data in streams(good, bad):
        with pytest.raises(Exception) as error:  # TensorFlow wraps what its threads raise.
            classifier.evaluate(data, steps=2, verbose=0)
        assert words in str(error.value)
    for run in (classifier.train_on_batch, classifier.test_on_batch):
        with short_error(words):
            run(*bad)


@pytest.mark.parametrize(
    "weights, words",
    [
        ([1.0, np.nan, 1.0], "`sample_weight` must hold finite numbers. Received: sample_weight with nan"),
        ([1.0], "`sample_weight` must have the shape (3,) or the targets', (3,). Received: sample_weight.shape=(1,)"),
        ([[1.0, 2.0]] * 3, "Received: sample_weight.shape=(3, 2)"),
    ],
)
def test_bad_weights_in_what_streams(classifier, weights, words):
    classifier.compile(keras.optimizers.SGD(0.1))
    bad = random_inputs(), np.array([0, 1, 2]), np.array(weights, "float32")
    for run, data in [(classifier.fit, (stream,)) for stream in streams(bad)] + [(classifier.train_on_batch, bad)]:
        with short_error(words):
            run(*data)


@pytest.mark.parametrize("place, error", [(0, ValueError), (5, Exception)])
def test_weights_that_are_no_numbers_stop_a_tf_dataset(place, error, classifier):
    """In the first batch they are found before anything compiles."""
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS, [np.nan if i == place else 1.0 for i in range(6)]))
    with pytest.raises(error, match="`sample_weight` must hold finite numbers"):
        classifier.fit(data.batch(3), verbose=0)


def test_names_of_several_classes_have_weights():
    backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)
    classifier = kbz.BertTextClassifier(backbone, class_names=["a", "b"], multi_label=True, dropout=0.0)
    classifier.compile(kbz.AdamW(0.1))
    before, losses = classifier.get_weights(), []
    names, numbers = [["a"], ["a", "b"], []], np.array([[1, 0], [1, 1], [0, 0]], "float32")
    for y in (names, numbers):
        classifier.set_weights(before)
        losses.append(classifier.train_on_batch(random_inputs(), y, sample_weight=np.array([1.0, 2.0, 0.0]))[0])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_targets_of_another_loss_stream_as_they_are(classifier):
    inputs, y = {**random_inputs(), "padding_mask": random_inputs()["padding_mask"] > 0}, np.array([0, 2, 1])
    expected = classifier.evaluate(random_inputs(), y, verbose=0)[0]
    of_texts = classifier.evaluate(TEXTS[:3], y, verbose=0)[0]
    one_hot = keras.losses.CategoricalCrossentropy(from_logits=True)
    for loss, targets in ((one_hot, np.eye(3, dtype="float32")[y]), (classifier.loss, y[:, None])):
        classifier.compile(keras.optimizers.SGD(0.1), loss=loss)
        for data in streams((inputs, targets)):
            found = classifier.evaluate(data, steps=1, verbose=0)
            assert np.ravel(found)[0] == pytest.approx(expected, rel=1e-5)
        assert np.ravel(classifier.test_on_batch(inputs, targets))[0] == pytest.approx(expected, rel=1e-5)
        tf = pytest.importorskip("tensorflow")
        for x, wanted in ((random_inputs(), expected), (TEXTS[:3], of_texts)):
            found = classifier.evaluate(tf.data.Dataset.from_tensors((x, targets)), verbose=0)
            assert np.ravel(found)[0] == pytest.approx(wanted, rel=1e-5)


def test_what_is_to_be_predicted_needs_no_targets(classifier):
    """GLUE's test sets have -1 for targets."""
    expected = classifier.predict(random_inputs(), verbose=0)
    for data in streams((random_inputs(), np.array([-1, -1, -1]))):
        np.testing.assert_array_equal(classifier.predict(data, steps=1, verbose=0), expected)
    tf = pytest.importorskip("tensorflow")
    stream = tf.data.Dataset.from_tensors((random_inputs(), [-1, -1, -1]))
    np.testing.assert_allclose(classifier.predict(stream, verbose=0), expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"`x` must be a data set of \(\(first, second\),\)"):
        classifier.predict(tf.data.Dataset.from_tensors((TEXTS, TEXTS)), verbose=0)


def test_a_model_outlives_a_bad_batch(classifier):
    """JAX takes the model's weights from it for a pass."""
    expected, weights = classifier.predict(random_inputs(), verbose=0), classifier.get_weights()
    good, bad = random_inputs(), random_inputs(vocabulary_size=400)
    for run, y in ((classifier.predict, ()), (classifier.evaluate, (np.array([0, 1, 2]),))):
        for before in (1, 2):
            with pytest.raises(Exception, match="`token_ids` must be in"):
                run((batch for batch in [(good, *y)] * before + [(bad, *y)]), steps=before + 1, verbose=0)
            np.testing.assert_array_equal(classifier.predict(random_inputs(), verbose=0), expected)
    for weight, other in zip(classifier.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(weight, other)


@pytest.mark.parametrize("before", [1, 3])
def test_a_model_outlives_a_bad_batch_to_train(classifier, before):
    """On JAX the third good batch and the bad one are in one execution."""
    good, bad, y = random_inputs(), random_inputs(vocabulary_size=400), np.array([0, 1, 2])
    classifier.compile(kbz.AdamW(1e-3), steps_per_execution=1 if keras.backend.backend() == "torch" else 2)
    for _ in range(2):  # The optimizer is intact too.
        with pytest.raises(Exception, match="`token_ids` must be in"):
            classifier.fit(((batch, y) for batch in [good] * before + [bad]), steps_per_epoch=before + 1, verbose=0)
        assert np.isfinite(classifier.predict(good, verbose=0)).all()


def test_an_interrupted_first_step_takes_no_weights(classifier):
    def interrupted():
        yield random_inputs(), np.array([0, 1, 2])
        raise KeyboardInterrupt

    classifier.compile(kbz.AdamW(1e-3))
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(interrupted(), steps_per_epoch=2, verbose=0)
    assert np.isfinite(classifier.predict(random_inputs(), verbose=0)).all()
    assert np.isfinite(classifier.train_on_batch(random_inputs(), np.array([0, 1, 2]))).all()


def test_an_interrupted_first_step_has_no_averages(classifier):
    def interrupted():
        yield random_inputs(), np.array([0, 1, 2])
        raise KeyboardInterrupt

    classifier.compile(kbz.AdamW(1e-9, use_ema=True))
    before = classifier.get_weights()
    with pytest.raises(KeyboardInterrupt):
        classifier.fit(interrupted(), steps_per_epoch=2, verbose=0)
    for weight, other in zip(classifier.get_weights(), before, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


@pytest.fixture
def hears_interrupts():
    """A shell has its background processes ignore SIGINT, and Python then leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only on JAX a step takes the weights with it")
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_during_a_step_loses_no_weights(steps_per_execution, backbone):
    """It comes in the second step, which is no Python code, and Python hears of it when that has ended."""
    ends = iter([])
    interrupt = defaultdict(_thread.interrupt_main)  # No call in Python code, at whose end Python would hear of it.

    class Interrupted(kbz.BertTextClassifier):
        def _make_function(self, step_function, *args, **kwargs):
            def step(state, data):
                outputs = step_function(state, data)
                if next(ends, None) == 2:
                    interrupt[len(interrupt)]
                return outputs

            return super()._make_function(partial(step), *args, **kwargs)

    model = Interrupted(backbone, num_classes=3)
    model.compile(kbz.AdamW(1e-3), steps_per_execution=steps_per_execution)
    x, y = random_inputs(batch=5), np.arange(5) % 3
    first, trained = [numpy(weight) for weight in model.trainable_weights], []
    for number, run in enumerate(
        [
            lambda: model.fit(x, y, batch_size=1, verbose=0),
            lambda: model.evaluate(x, y, batch_size=1, verbose=0),
            lambda: model.predict(x, batch_size=1, verbose=0),
        ]
    ):
        ends = iter([1, 2])
        with pytest.raises(KeyboardInterrupt):
            run()
        assert len(interrupt) == number + 1
        assert int(model.optimizer.iterations) == 2
        weights = [numpy(weight) for weight in model.trainable_weights]
        trained = trained or weights
        for weight, value, before in zip(weights, trained, first, strict=True):
            np.testing.assert_array_equal(weight, value)
            assert (weight != before).any()


def test_a_subclass_has_defaults_of_its_own(backbone):
    class Mine(kbz.BertTextClassifier):
        def compile(self, optimizer=None, loss="mse", **kwargs):
            super().compile(optimizer=optimizer, loss=loss, **kwargs)

    mine = Mine(backbone, num_classes=3)
    assert mine.optimizer is None
    assert mine.get_compile_config()["loss"] == "mse"
    assert mine.get_compile_config()["weighted_metrics"] == ["accuracy"]


def test_a_subclass_hands_on_a_loss_and_metrics(backbone):
    class Mine(kbz.BertTextClassifier):
        def compile(self, optimizer="auto", loss="auto", metrics=None):
            super().compile(optimizer, loss, metrics)

    mine = Mine(backbone, num_classes=3)
    assert isinstance(mine.loss, keras.losses.SparseCategoricalCrossentropy)
    assert mine._compile_metrics is None
    mine.compile(None, "mse", ["mae"])
    config = mine.get_compile_config()
    assert (config["loss"], config["metrics"], config["weighted_metrics"]) == ("mse", ["mae"], None)


def test_a_subclass_has_a_loss_and_metrics_of_its_own(backbone):
    class Mine(kbz.BertTextClassifier):
        def default_loss(self):
            return "mse"

        def default_metrics(self):
            return ["mae"]

    config = Mine(backbone, num_classes=3).get_compile_config()
    assert (config["loss"], config["metrics"], config["weighted_metrics"]) == ("mse", None, ["mae"])


def test_a_subclass_compiles_as_it_likes(backbone, tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Mine(kbz.BertTextClassifier):
        def compile(self, optimizer, alpha, **kwargs):
            super().compile(optimizer=optimizer, **kwargs)
            self.alpha = alpha

    mine = Mine(backbone, num_classes=3)
    assert isinstance(mine.optimizer, kbz.AdamW)
    mine.compile(None, 0.5)
    assert (mine.optimizer, mine.alpha) == (None, 0.5)
    mine.compile(kbz.AdamW(0.25), 0.5, loss="mse")
    mine.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="The `compile` of Mine takes arguments of its own, so the loaded model was"):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (type(loaded.optimizer), float(loaded.optimizer.learning_rate), loaded.loss) == (kbz.AdamW, 0.25, "mse")
    assert not hasattr(loaded, "alpha")


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX traces losses and metrics")
def test_losses_look_at_values_where_nothing_is_traced(still):
    seen = []

    def loss(y, logits):
        seen.append(keras.ops.convert_to_numpy(logits))
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    still.compile(kbz.AdamW(1e-3), loss=loss, metrics=[], run_eagerly=True)
    expected = logits_one_by_one(still, TEXTS)
    still.fit(TEXTS, LABELS, shuffle=False, verbose=0)
    np.testing.assert_allclose(seen[-1], expected, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="Keras' JAX trainer needs an optimizer to train")
def test_a_step_of_ones_own_needs_no_optimizer(backbone, classifier):
    class Mine(kbz.BertTextClassifier):
        def train_step(self, data):
            return {"loss": keras.ops.convert_to_tensor(0.25)}

    mine = Mine(backbone, num_classes=3, preprocessor=classifier.preprocessor)
    mine.compile(optimizer=None)
    assert mine.fit(TEXTS, LABELS, verbose=0).history == {"loss": [0.25]}


def tensors(arrays):
    return {name: keras.ops.convert_to_tensor(array) for name, array in arrays.items()}


def test_a_batch_to_predict_is_checked(classifier):
    """Also in a backend's tensors: JAX would look up a row that is not there as NaN."""
    with pytest.raises(ValueError, match="`token_ids` must be in"):
        classifier.predict_on_batch(random_inputs(vocabulary_size=400))
    model = kbz.BertMaskedLM(classifier.backbone)
    good, bad = random_inputs(), random_inputs(vocabulary_size=400)
    beyond = {**good, "mask_positions": np.full((3, 1), 9, "int32")}
    expected = classifier.predict(good, verbose=0)
    np.testing.assert_allclose(numpy(classifier.predict_on_batch(tensors(good))), expected, atol=1e-6)
    backbone, extractor = classifier.backbone, classifier.backbone.extractor()
    on_batch = [each.predict_on_batch for each in (classifier, backbone, extractor)]
    for run in (*on_batch, backbone.predict, extractor.predict):
        for inputs in (bad, tensors(bad)):
            with short_error("`token_ids` must be in [0, 40). Received: token_ids with "):
                run(inputs)
    for inputs in (beyond, tensors(beyond)):
        with short_error("`mask_positions` must be in [0, 9). Received: mask_positions with 9"):
            model.predict_on_batch(inputs)


def test_what_streams_is_what_is_at_hand():
    classifier = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), class_names=["no", "yes"]))
    inputs, weights = random_inputs(), np.array([1.0, 0.0, 2.0], "float32")
    for y in (["no", "yes", "yes"], np.array([0, 1, 1], "int64")):
        expected = classifier.evaluate(inputs, y, sample_weight=weights, verbose=0)
        for data in streams((inputs, y, weights)):
            np.testing.assert_allclose(classifier.evaluate(data, steps=1, verbose=0), expected, rtol=1e-5)
        np.testing.assert_allclose(classifier.test_on_batch(inputs, y, weights), expected, rtol=1e-5)


def test_pairs_need_two_segments(tokenizer):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    classifier = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW, num_segments=1), 2, preprocessor=preprocessor)
    with pytest.raises(ValueError, match=r"Pairs need a backbone with two segment types. Received: num_segments=1"):
        classifier.predict((TEXTS, TEXTS), verbose=0)
    assert classifier.predict(TEXTS, verbose=0).shape == (6, 2)


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "`num_classes` must be a positive integer. Received: num_classes=None"),
        ({"num_classes": 1}, "`num_classes` must be at least 2. Received: num_classes=1"),
        ({"num_classes": 3, "class_names": ["a", "b"]}, "`num_classes` must be the number of `class_names`"),
        ({"class_names": "ab"}, "`class_names` must be a list of strings. Received: class_names='ab'"),
        ({"class_names": ["a", "a"]}, "`class_names` must be different strings"),
        ({"class_names": ["a", "\ud800"]}, "`class_names` must hold valid Unicode. Received: class_names[1] with half"),
        ({"num_classes": 2, "dropout": 2}, "`dropout` must be a number in [0, 1)"),
        ({"num_classes": 2, "colour": "red"}, "BertTextClassifier has no argument of this name. Received: colour"),
        ({"num_classes": 2, "multi_label": "no"}, "`multi_label` must be True or False. Received: multi_label='no'"),
    ],
)
def test_bad_arguments(backbone, options, words):
    with short_error(words):
        kbz.BertTextClassifier(backbone, **options)


def test_one_label_may_apply_or_not(tokenizer):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    classifier = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), 1, multi_label=True, preprocessor=preprocessor)
    logits, ones = randomise(classifier).predict(TEXTS, verbose=0).astype("float64"), np.array([[1], [0]] * 3)
    scores = classifier.evaluate(TEXTS, ones, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(np.mean(np.log1p(np.exp(logits)) - ones * logits), abs=1e-5)
    assert scores["accuracy"] == pytest.approx(np.mean((logits > 0) == ones))
    expected = [[("0", pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6))] for (logit,) in logits]
    assert classifier.classify(TEXTS) == expected


def test_a_config_keeps_auto_as_auto():
    """Keras would keep what it means on one backend, and another backend would take that for the user's wish."""
    classifier = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), 2)
    assert classifier.get_compile_config()["jit_compile"] == "auto"
    classifier.compile(jit_compile=False)
    assert classifier.get_compile_config()["jit_compile"] is False


def test_parts_that_do_not_fit_together(tokenizer):
    small = kbz.BertBackbone(**{**SHALLOW, "vocabulary_size": 29})
    fits = kbz.BertPreprocessor(tokenizer, 16)
    with pytest.raises(ValueError, match=r"no larger than the backbone's embedding. Received: 30 tokens"):
        kbz.BertTextClassifier(small, 2, preprocessor=fits)
    long = kbz.BertPreprocessor(tokenizer, 17)
    with pytest.raises(ValueError, match=r"at most the backbone's max_sequence_length. Received: sequence_length=17"):
        kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), 2, preprocessor=long)
    with pytest.raises(ValueError, match="`backbone` must have a pooler"):
        kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW, pooler=False), 2)
    with pytest.raises(ValueError, match="`sequence_length` must be at least 4"):
        kbz.BertPreprocessor(tokenizer, 3)
    with pytest.raises(ValueError, match=r"`tokenizer` must be a BertTokenizer. Received: tokenizer='vocab.txt'"):
        kbz.BertPreprocessor("vocab.txt")
    for task, preprocessor in (
        (kbz.BertTextClassifier, tokenizer),
        (kbz.BertTextClassifier, kbz.BertWordPreprocessor(tokenizer, 16)),
        (kbz.BertTokenClassifier, fits),
    ):
        words = f"`preprocessor` must be a {task.preprocessor_class.__name__}. Received: preprocessor of type"
        with pytest.raises(ValueError, match=words):
            task(kbz.BertBackbone(**SHALLOW), 2, preprocessor=preprocessor)
    with pytest.raises(ValueError, match=r"`backbone` must be a BertBackbone; .* Received: backbone of type str"):
        kbz.BertTextClassifier("bert_base", 2)
    bare = kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), 2)
    with pytest.raises(ValueError, match="the task has preprocessor=None"):
        bare.predict(TEXTS, verbose=0)


# --- Weights and steps, for each way of giving them

WEIGHTS = np.array([1, 2, 0.5, 3, 0, 1.0])


@pytest.fixture
def losses(still):
    """Return the loss of each text, without its weight; the model stays as it is."""
    losses = crossentropy(logits_one_by_one(still, TEXTS), LABELS)
    still.compile(keras.optimizers.SGD(0.0))
    return losses


@slow_on("tensorflow", "jax")
def test_a_held_out_part_has_its_weights_and_steps(still, losses):
    order = [0, 3, 1, 5, 2, 4]
    texts, labels = ([column[i] for i in order] for column in (TEXTS, LABELS))
    weighted = losses[order] * WEIGHTS
    for steps, size, held_out in ((None, None, weighted[2:]), (1, None, weighted[2:4]), (1, 3, weighted[2:5])):
        options = {"sample_weight": WEIGHTS, "validation_split": 2 / 3, "validation_steps": steps, "verbose": 0}
        history = still.fit(texts, labels, 2, validation_batch_size=size, **options).history
        assert history["val_loss"][0] == pytest.approx(held_out.mean(), abs=1e-5)


@slow_on("tensorflow", "jax")
def test_validation_data_have_their_weights(still, losses):
    history = still.fit(TEXTS, LABELS, validation_data=(TEXTS, LABELS, WEIGHTS), verbose=0).history
    assert history["val_loss"][0] == pytest.approx((losses * WEIGHTS).mean(), abs=1e-5)


@slow_on("tensorflow", "jax")
def test_steps_of_an_evaluation_are_of_the_first_rows(still, losses):
    assert still.evaluate(TEXTS, LABELS, 2, steps=2, verbose=0)[0] == pytest.approx(losses[:4].mean(), abs=1e-5)


@slow_on("tensorflow", "jax")
def test_batches_for_another_model_have_their_weights(still, losses):
    batches = still.batches(TEXTS, LABELS, sample_weight=WEIGHTS, shuffle=False)
    assert still.evaluate(batches, verbose=0)[0] == pytest.approx((losses * WEIGHTS).mean(), abs=1e-5)


@slow_on("tensorflow", "jax")
def test_a_batch_has_the_weights_of_its_classes(still, losses):
    still.class_names = ["no", "yes", "so"]
    expected = (losses * np.array([1.0, 3.0, 0.5])[LABELS]).mean()
    batch, weights = (still.preprocessor(TEXTS), np.array(LABELS)), {"yes": 3.0, 2: 0.5}
    before = still.get_weights()
    loss, _ = still.train_on_batch(*batch, class_weight=weights)
    assert loss == pytest.approx(expected, abs=1e-5)
    for stream in streams(batch):
        still.set_weights(before)
        history = still.fit(stream, class_weight=weights, steps_per_epoch=1, verbose=0).history
        assert history["loss"][0] == pytest.approx(expected, abs=1e-5)
    expected = (losses * WEIGHTS * np.array([1.0, 3.0, 0.5])[LABELS]).mean()
    weighted, column = (*batch, WEIGHTS), (*batch, WEIGHTS[:, None])
    # A stream's weights are multiplied.
    for stream in [*streams(weighted), *streams(column), *tf_datasets(weighted), *tf_datasets(column)]:
        still.set_weights(before)
        history = still.fit(stream, class_weight=weights, steps_per_epoch=1, verbose=0).history
        assert history["loss"][0] == pytest.approx(expected, abs=1e-5)
    for more, words in (
        (
            {"class_weight": {"nope": 3.0}},
            "`class_weight` must have classes as keys. Received: class_weight with 'nope'",
        ),
        ({"class_weight": weights, "sample_weight": np.ones(6)}, "`class_weight` and `sample_weight` exclude each"),
    ):
        with short_error(words):
            still.train_on_batch(*batch, **more)


# --- Between two runs of `fit`


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_fit_reads_what_was_quantized_since(still):
    """TensorFlow's program kept training the float weights; on JAX the optimizer's weights must be the model's."""
    still.compile(keras.optimizers.SGD(0.0))
    still.fit(TEXTS, LABELS, batch_size=6, verbose=0)
    still.backbone.quantize("int8")
    scales = [layer for layer in still.backbone._flatten_layers() if hasattr(layer, "kernel_scale")]
    for layer in scales:
        layer.kernel_scale.assign(layer.kernel_scale / 5)
    assert scales
    expected = still.evaluate(TEXTS, LABELS, verbose=0)[0]
    if keras.backend.backend() == "jax":
        with pytest.raises(ValueError, match=r"`compile` must be called again .* Received: .*, no longer trainable"):
            still.fit(TEXTS, LABELS, batch_size=6, verbose=0)
        still.compile(keras.optimizers.SGD(0.0))
    history = still.fit(TEXTS, LABELS, batch_size=6, verbose=0).history
    assert history["loss"][0] == pytest.approx(expected, abs=1e-5)


@slow_on("tensorflow", "jax")
def test_other_weights_to_train_need_another_compile(still):
    still.backbone.trainable = False
    still.fit(TEXTS, LABELS, verbose=0)
    still.backbone.trainable = True
    before = [numpy(weight) for weight in still.weights]
    with pytest.raises(ValueError, match=r"`compile` must be called again .* Received: embeddings/.*, trainable now"):
        still.fit(TEXTS, LABELS, verbose=0)
    for weight, value in zip(still.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)
    still.compile()
    still.fit(TEXTS, LABELS, verbose=0)
    assert np.abs(numpy(still.backbone.embeddings.weights[0]) - before[0]).max() > 0


@slow_on("tensorflow", "jax")
def test_a_killed_fit_goes_on_with_keras_backup(classifier, tmp_path):
    """It ends with the weights of one that was never killed."""

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(*callbacks):
        keras.utils.set_random_seed(1)
        backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)
        model = kbz.BertTextClassifier(backbone, 3, dropout=0.0, preprocessor=classifier.preprocessor)
        model.fit(TEXTS, LABELS, 2, epochs=4, verbose=0, callbacks=list(callbacks))
        weights = [numpy(weight) for weight in model.weights]
        assert model.fit(TEXTS, LABELS, epochs=1, verbose=0).epoch == [0]  # It does not go on from there.
        return weights

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    expected = fit()
    with pytest.raises(KeyboardInterrupt):
        fit(backup(), Kill())
    for weight, value in zip(fit(backup()), expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=0, atol=1e-6)


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize("killed_at", [3, 5])
def test_a_fit_killed_within_an_epoch_repeats_it_at_its_rates(killed_at, classifier, tmp_path):
    """The schedule of this `fit` ends with its sixth update, as without a kill."""

    class Kill(keras.callbacks.Callback):
        batches = 0

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if self.batches == killed_at:
                raise KeyboardInterrupt

    def fit(*callbacks):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=2)
        classifier.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
        classifier.fit(TEXTS, LABELS, 2, epochs=2, verbose=0, callbacks=[backup, *callbacks])

    with pytest.raises(KeyboardInterrupt):
        fit(Kill())
    fit()
    assert int(classifier.optimizer.iterations) == 6

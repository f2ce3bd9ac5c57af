"""Keras' own distiller on our tasks: its loss by hand, and what a student learns from raw text."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import LABELS, SHALLOW, TEXTS, numpy, random_inputs, randomise, short_error, slow_on

# Keras takes the string, which is its default, for a loss over logits (3.15).
LOSS = keras.distillation.LogitsDistillation(2.0, loss=keras.losses.KLDivergence())


def classifier(tokenizer, seed, dropout=0.0, scale=0.5, **sizes):
    backbone = kbz.BertBackbone(**{**SHALLOW, **sizes}, dropout=dropout, attention_dropout=dropout)
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    model = kbz.BertTextClassifier(backbone, num_classes=3, dropout=dropout, preprocessor=preprocessor)
    return randomise(model, seed, scale)


def by_hand(teacher, student, labels, temperature=2.0, share=0.3):
    """Hinton et al. 2015, section 2: soft targets, their gradient scaled by the square of the temperature."""

    def log_softmax(logits):
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    hard = -log_softmax(student)[np.arange(len(labels)), labels].mean()
    soft, guess = log_softmax(teacher / temperature), log_softmax(student / temperature)
    divergence = temperature**2 * (np.exp(soft) * (soft - guess)).sum(-1).mean()
    return {"student_loss": hard, "distillation_loss": divergence, "loss": share * hard + (1 - share) * divergence}


@slow_on("tensorflow", "jax")
def test_loss_by_hand_and_a_student_nearer_to_its_teachers(tokenizer, tmp_path):
    members = [classifier(tokenizer, seed, dropout=0.5, scale=1.0, num_layers=2) for seed in range(2)]
    teacher, student = kbz.ensemble(members), classifier(tokenizer, 2)
    distiller = keras.distillation.Distiller(teacher, student, LOSS, student_loss_weight=0.3)
    before = [numpy(weight) for weight in teacher.weights]

    def distance():
        return np.abs(teacher.predict(TEXTS, verbose=0) - student.predict(TEXTS, verbose=0)).mean()

    far = distance()
    expected = by_hand(teacher.predict(TEXTS, verbose=0), student.predict(TEXTS, verbose=0), LABELS)
    batches = student.batches(TEXTS, LABELS, batch_size=6)
    schedule = kbz.WarmupPolynomialDecay(1e-2, total_steps=30 * len(batches))
    distiller.compile(kbz.AdamW(schedule, bias_correction=True), loss=student.loss)
    scores = distiller.evaluate(batches, verbose=0, return_dict=True)  # The teacher's dropout is off.
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value, rel=1e-4), name

    logs = distiller.fit(batches, epochs=30, shuffle=False, verbose=0).history
    assert logs["loss"][0] == pytest.approx(expected["loss"], rel=1e-4)  # Nor is it on in training.
    assert distance() < far / 2
    for weight, value in zip(teacher.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), value)
    student.save_to_preset(tmp_path)
    again = kbz.BertTextClassifier.from_preset(tmp_path)
    np.testing.assert_array_equal(again.predict(TEXTS, verbose=0), student.predict(TEXTS, verbose=0))


def test_without_labels_and_by_features(tokenizer):
    teacher, student = classifier(tokenizer, 0), classifier(tokenizer, 1)
    pooled = keras.distillation.FeatureDistillation("mse", "classifier_dropout", "classifier_dropout")
    distiller = keras.distillation.Distiller(teacher, student, [LOSS, pooled], student_loss_weight=0.0)
    distiller.compile(loss=student.loss)
    logs = distiller.evaluate(student.batches(TEXTS, batch_size=6, shuffle=False), verbose=0, return_dict=True)
    inputs = student.preprocessor(TEXTS)
    outputs = [numpy(model(inputs)) for model in (teacher, student)]
    vectors = [numpy(model.backbone(inputs)["pooled_output"]) for model in (teacher, student)]
    soft = by_hand(*outputs, LABELS)["distillation_loss"]
    assert logs["loss"] == pytest.approx(soft + ((vectors[0] - vectors[1]) ** 2).mean(), rel=1e-4)


def passes(batches, count):
    """Return what Keras' own `fit` draws; it shuffles the batches of a PyDataset unless it is told not to."""
    if keras.backend.backend() == "tensorflow":
        return [[numpy(y)[:, 0].tolist() for _, y, *_ in batches] for _ in range(count)]
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    adapter, found = PyDatasetAdapter(batches, shuffle=True), []
    for _ in range(count):
        adapter.on_epoch_begin()
        found.append([numpy(y)[:, 0].tolist() for _, y, *_ in adapter.get_numpy_iterator()])
        adapter.on_epoch_end()
    return found


def test_every_example_once_an_epoch_anew():
    regressor = kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW))
    inputs = random_inputs(40)
    batches = regressor.batches(inputs, np.arange(40), batch_size=4)
    assert len(batches) == 10
    first, second, third = passes(batches, 3)
    for drawn in (first, second, third):
        assert sorted(number for batch in drawn for number in batch) == list(range(40))
    assert len({tuple(sorted(batch)) for drawn in (first, second, third) for batch in drawn}) > 20
    lengths = inputs["padding_mask"].sum(1)
    still = regressor.batches(inputs, np.arange(40), batch_size=4, shuffle=False)
    assert [len(batch) for batch in passes(still, 1)[0]] == [4] * 10
    ordered = [lengths[int(y)] for _, ys, *_ in still for y in numpy(ys)[:, 0]]
    assert ordered == sorted(ordered, reverse=True)


def test_bad_arguments(tokenizer):
    student = classifier(tokenizer, 0)
    for x, y, words in (
        (TEXTS, ["dull"] * 6, "`y` must hold integers, as the classes have no names. Received: y with 'dull'"),
        (TEXTS, [0, 1, 2], "`y` must have the shape (6,)"),
        (iter(TEXTS), None, "`x` must be raw text or ready arrays in memory. Received: x of type list_iterator"),
    ):
        with short_error(words):
            student.batches(x, y)

"""The schedule at hand-worked steps, and over the runs of fit."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import SHALLOW, numpy, random_inputs, short_error, slow_on


def test_schedule_at_hand_worked_steps():
    schedule = kbz.WarmupPolynomialDecay(1.0, warmup=0.1, total_steps=20)
    rates = [float(schedule(step)) for step in (0, 1, 2, 10, 19, 20, 30)]
    np.testing.assert_allclose(rates, [0, 0.5, 0.9, 0.5, 0.05, 0, 0], atol=1e-6)
    numpys = kbz.WarmupPolynomialDecay(np.float32(2.0), np.float32(0.0), np.int64(10), power=np.int64(1))
    assert float(numpys(0)) == 2.0
    cut = kbz.WarmupPolynomialDecay(1.0, warmup=0.1, total_steps=19)  # A tenth of 19 is one step, as in the original.
    np.testing.assert_allclose([float(cut(step)) for step in (0, 1)], [0, 18 / 19], atol=1e-6)
    squared = kbz.WarmupPolynomialDecay(1.0, warmup=0.1, total_steps=20, power=2.0)
    rates = [float(squared(step)) for step in (0, 1, 2, 10, 19, 20, 30)]
    np.testing.assert_allclose(rates, [0, 0.5, 0.81, 0.25, 0.0025, 0, 0], atol=1e-6)


def test_schedule_saves():
    for total_steps in (None, 50):
        schedule = kbz.WarmupPolynomialDecay(1e-3, 0.2, total_steps, power=0.5)
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
        assert (again.learning_rate, again.warmup, again.total_steps, again.power) == (1e-3, 0.2, total_steps, 0.5)


class Rates(keras.callbacks.Callback):
    """Reads after each step the rate of the next."""

    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def on_train_batch_end(self, batch, logs=None):
        if keras.backend.backend() == "jax":  # Between steps the state is not in the variables.
            self.model.jax_state_sync()
        self.rates.append(float(numpy(self.model.optimizer.learning_rate)))


def test_schedule_follows_fit(classifier):
    texts, labels = ["a good film", "bad", "fine"] * 8, [0, 1, 2] * 8
    rates = []
    classifier.fit(texts, labels, batch_size=6, epochs=5, verbose=0, callbacks=[Rates(rates)])
    # Each is read after one of the 20 steps, so it is the rate of the next.
    expected = [min(3e-5 * step / 2, 3e-5) if step < 2 else 3e-5 * (1 - step / 20) for step in range(1, 21)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-12)
    rates.clear()
    classifier.fit(texts, labels, batch_size=6, epochs=5, initial_epoch=4, verbose=0, callbacks=[Rates(rates)])
    np.testing.assert_allclose(rates, expected[16:], rtol=1e-5, atol=1e-12)
    assert classifier.optimizer.get_config()["learning_rate"]["config"]["total_steps"] is None  # For the next run too.


def sgd(peak):
    return keras.optimizers.SGD(kbz.WarmupPolynomialDecay(peak, warmup=0.0))


@pytest.mark.parametrize("by_function, is_scaled", [(False, False), (True, True)])
def test_each_of_several_schedules_follows_fit(by_function, is_scaled, tokenizer):
    """With a gradient of one, a step of SGD is the rate."""
    model = kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW), preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    rest, head = (sgd(peak) for peak in (1e-4, 1e-2))

    def choose(weight):
        return head if weight.path.startswith("regressor/") else rest

    chosen = choose if by_function else keras.optimizers.OptimizerMap(rest, {"regressor/.*": head})
    optimizer = keras.optimizers.MultiOptimizer(chosen)
    model.compile(kbz.LossScaleOptimizer(optimizer, 8.0) if is_scaled else optimizer, loss=lambda y, logits: logits)
    with short_error("`optimizer` must have a learning rate, or a schedule with total_steps"):
        model.train_on_batch(random_inputs(), np.zeros(3))
    bias = next(w for w in model.trainable_weights if w.path == "regressor/bias")
    for epochs in (2, 3):
        before, steps = numpy(bias), 2 * epochs
        model.fit(["a"] * 4, [0.0] * 4, batch_size=2, epochs=epochs, verbose=0)
        expected = 1e-2 * (1 - np.arange(steps) / steps).sum()
        np.testing.assert_allclose(before - numpy(bias), [expected], rtol=1e-4)
        assert [int(each.iterations) for each in (rest, head)] == [steps, steps]
        assert float(rest._learning_rate(1)) == pytest.approx(1e-4 * (1 - 1 / steps))


def test_a_function_may_make_the_optimizers_whose_schedules_follow_fit(tokenizer):
    model = kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW), preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    optimizer = keras.optimizers.MultiOptimizer(lambda weight: sgd(1e-2 if "regressor" in weight.path else 1e-4))
    model.compile(optimizer, loss=lambda y, logits: logits)
    bias = next(w for w in model.trainable_weights if w.path == "regressor/bias")
    before = numpy(bias)
    model.fit(["a"] * 4, [0.0] * 4, batch_size=2, epochs=2, verbose=0)
    np.testing.assert_allclose(before - numpy(bias), [1e-2 * (1 + 0.75 + 0.5 + 0.25)], rtol=1e-4)


def test_schedule_follows_updates(classifier):
    """With 7 batches per epoch and two per update, 14 batches are 7 updates, and the first epoch ends within one."""
    texts, labels, rates = ["a good film"] * 7, [0] * 7, []
    classifier.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1.0, warmup=0.3), gradient_accumulation_steps=2))
    classifier.fit(texts, labels, batch_size=1, epochs=2, verbose=0, callbacks=[Rates(rates)])
    expected = [0.0, 0.5, 0.5, *(1 - np.repeat([2, 3, 4, 5, 6], 2) / 7), 0.0]
    np.testing.assert_allclose(rates, expected, atol=1e-6)
    assert int(numpy(classifier.optimizer.iterations)) == 7


@pytest.mark.parametrize("dtype, updates", [("mixed_float16", 1), ("float32", 3)])
def test_steps_that_overflowed_are_no_updates_of_a_run_that_goes_on(dtype, updates, tokenizer):
    preprocessor = kbz.BertPreprocessor(tokenizer, 16)
    model = kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW, dtype=dtype), preprocessor=preprocessor)
    model.fit(["a"] * 6, [0.0] * 6, batch_size=2, verbose=0)
    optimizer = model._optimizer_within()
    optimizer._iterations.assign(1)  # As a callback restores it if two of three overflowed.
    model.fit(["a"] * 6, [0.0] * 6, batch_size=2, initial_epoch=1, epochs=2, verbose=0)
    assert int(numpy(optimizer._iterations)) == updates + 3


@slow_on("tensorflow", "jax")
def test_models_share_a_schedule(tokenizer):
    """Each run sets it anew, whatever the other has left in it. With a gradient of one, a step of SGD is the rate."""
    schedule, preprocessor = kbz.WarmupPolynomialDecay(1e-2, warmup=0.0), kbz.BertPreprocessor(tokenizer, 16)
    models = [kbz.BertTextRegressor(kbz.BertBackbone(**SHALLOW), preprocessor=preprocessor) for _ in range(2)]
    for model in models:
        model.compile(keras.optimizers.SGD(schedule), loss=lambda y, logits: logits)
    for model, epochs in ((0, 2), (1, 5), (0, 5), (0, 3)):
        bias = next(w for w in models[model].trainable_weights if w.path.endswith("regressor/bias"))
        before = numpy(bias)
        models[model].fit(["a"] * 4, [0.0] * 4, batch_size=2, epochs=epochs, verbose=0)
        steps = 2 * epochs
        expected = 1e-2 * (1 - np.arange(steps) / steps).sum()
        np.testing.assert_allclose(before - numpy(bias), [expected], rtol=1e-4)


@pytest.mark.parametrize(
    "run, words",
    [
        (lambda: kbz.WarmupPolynomialDecay(1.0, warmup=1.0), "`warmup` must be a number in [0, 1)"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, "0.1"), "a number in [0, 1). Received: warmup='0.1'"),
        (lambda: kbz.WarmupPolynomialDecay("1e-3"), "a positive number. Received: learning_rate='1e-3'"),
        (lambda: kbz.WarmupPolynomialDecay(-1e-3), "`learning_rate` must be a positive number. Received: learn"),
        (lambda: kbz.WarmupPolynomialDecay(float("inf")), "`learning_rate` must be a positive number"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, power=None), "`power` must be a positive number"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, power=0.0), "`power` must be a positive number"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps="10"), "`total_steps` must be a positive integer"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps=0), "`total_steps` must be a positive integer"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps=""), "a positive integer. Received: total_steps=''"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps=2.5), "a positive integer. Received: total_steps=2.5"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps=True), "a positive integer. Received: total_steps=True"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps=float("inf")), "integer. Received: total_steps=inf"),
        (lambda: kbz.WarmupPolynomialDecay(1.0, total_steps=float("nan")), "integer. Received: total_steps=nan"),
        (lambda: kbz.WarmupPolynomialDecay(1.0)(3), "`total_steps` must be given"),
    ],
)
def test_bad_arguments(run, words):
    with short_error(words):
        run()


def test_averages_do_not_begin_at_zero_within_a_run(classifier):
    """Keras copies the weights to them where the count is 0; the schedule counts the epochs before."""
    texts, labels, schedule = ["a good film"] * 4, [0] * 4, kbz.WarmupPolynomialDecay(1e-9, warmup=0.0)
    classifier.compile(kbz.AdamW(schedule, use_ema=True))
    before = classifier.get_weights()
    with short_error("`initial_epoch` must be 0", "Received: initial_epoch=1"):
        classifier.fit(texts, labels, batch_size=2, epochs=2, initial_epoch=1, verbose=0)
    classifier.fit(texts, labels, batch_size=2, verbose=0)
    classifier.fit(texts, labels, batch_size=2, epochs=2, initial_epoch=1, verbose=0)
    for old, new in zip(before, classifier.get_weights(), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)

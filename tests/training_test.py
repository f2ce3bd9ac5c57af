"""The optimiser and the schedule against NumPy."""

import math

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TINY, numpy

STEPS = 6


def adamw_oracle(weights, gradients, rate, bias_correction):
    """google-research/bert, optimization.py, AdamWeightDecayOptimizer: clip, moments, decay inside the rate."""
    moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in weights.items()}
    for t, grads in enumerate(gradients, 1):
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        for name, grad in grads.items():
            grad = grad * min(1.0, 1.0 / norm)
            m, v = moments[name]
            m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
            moments[name] = m, v
            if bias_correction:  # Kingma & Ba 2015, section 2, in the order Keras computes it
                scale = np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                update = scale * m / (np.sqrt(v) + 1e-6)
            else:
                update = m / (np.sqrt(v) + 1e-6)
            if name == "kernel":
                update = update + 0.01 * weights[name]
            weights[name] = weights[name] - rate * update
    return weights


@pytest.mark.parametrize("bias_correction", [False, True])
def test_adamw_step_by_step(bias_correction):
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 4), "bias": (4,), "gamma": (4,), "beta": (4,)}
    values = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{name: rng.normal(size=shape) * 3 for name, shape in shapes.items()} for _ in range(STEPS)]
    variables = {name: keras.Variable(value.astype("float32"), name=name) for name, value in values.items()}
    optimizer = kbz.AdamW(0.1, bias_correction=bias_correction)
    optimizer.build(list(variables.values()))
    for grads in gradients:
        tensors = [keras.ops.convert_to_tensor(grads[name].astype("float32")) for name in variables]
        optimizer.apply(tensors, list(variables.values()))
    for name, expected in adamw_oracle(values, gradients, 0.1, bias_correction).items():
        np.testing.assert_allclose(numpy(variables[name]), expected, atol=2e-5, err_msg=name)


def test_adamw_clips_by_the_summed_gradient_of_a_table():
    """An id that occurs twice: its row's gradient is the sum, and so is the norm."""
    table = keras.layers.Embedding(5, 2, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table])
    optimizer = kbz.AdamW(0.5, weight_decay=0.0, beta_1=0.0, beta_2=0.0, epsilon=1.0, global_clipnorm=0.1)
    model.compile(optimizer, loss=lambda y, p: p)
    model.fit(np.array([[1, 1, 4]]), np.zeros((1, 3, 2)), verbose=0)
    # d loss / d entry is 1/6 an occurrence, so 2/6 in row 1 and 1/6 in row 4: the norm is sqrt(2 * 4 + 2 * 1) / 6.
    expected = np.zeros((5, 2))
    for row, grad in ((1, 2 / 6), (4, 1 / 6)):
        grad *= 0.1 / (math.sqrt(10) / 6)
        expected[row] = -0.5 * grad / (grad + 1.0)
    np.testing.assert_allclose(numpy(table.embeddings), expected, atol=1e-6)


def test_decay_leaves_biases_and_layer_norm_alone():
    backbone = kbz.BertBackbone(**TINY)
    optimizer = kbz.AdamW(0.1)
    optimizer.build(backbone.trainable_variables)
    decayed = {w.path for w in backbone.trainable_variables if optimizer._use_weight_decay(w)}
    assert decayed == {w.path for w in backbone.trainable_variables if w.name in ("kernel", "embeddings")}
    assert len(decayed) == 3 + 2 * 4 + 1


def test_adamw_saves():
    optimizer = kbz.AdamW(kbz.WarmupLinearDecay(1e-3, 0.2, 50), weight_decay=0.02, bias_correction=True)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert (again.weight_decay, again.epsilon, again.global_clipnorm, again.bias_correction) == (0.02, 1e-6, 1.0, True)


def test_schedule_at_hand_worked_steps():
    schedule = kbz.WarmupLinearDecay(1.0, warmup=0.1, total_steps=20)
    rates = [float(schedule(step)) for step in (0, 1, 2, 10, 19, 20, 30)]
    np.testing.assert_allclose(rates, [0, 0.5, 0.9, 0.5, 0.05, 0, 0], atol=1e-6)
    assert float(kbz.WarmupLinearDecay(2.0, 0.0, 10)(0)) == 2.0


def test_schedule_follows_fit(classifier):
    texts, labels = ["a good film", "bad", "fine"] * 8, [0, 1, 2] * 8
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if keras.backend.backend() == "jax":  # Between steps the state is not in the variables.
                self.model.jax_state_sync()
            rates.append(float(numpy(classifier.optimizer.learning_rate)))

    classifier.fit(texts, labels, batch_size=6, epochs=5, verbose=0, callbacks=[Rates()])
    # Read after each of the 20 steps, so the rate of the next.
    expected = [min(3e-5 * step / 2, 3e-5) if step < 2 else 3e-5 * (1 - step / 20) for step in range(1, 21)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-12)
    rates.clear()
    classifier.fit(texts, labels, batch_size=6, epochs=5, initial_epoch=4, verbose=0, callbacks=[Rates()])
    np.testing.assert_allclose(rates, expected[16:], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    "run, words",
    [
        (lambda: kbz.WarmupLinearDecay(1.0, warmup=1.0), "`warmup` must be a share in [0, 1)"),
        (lambda: kbz.WarmupLinearDecay(1.0, total_steps=0), "`total_steps` must be at least 1"),
        (lambda: kbz.WarmupLinearDecay(1.0)(3), "`total_steps` must be given"),
    ],
)
def test_bad_arguments(run, words):
    with pytest.raises(ValueError) as error:
        run()
    assert words in str(error.value)

"""Fitting on several devices gives what one device gives; each run in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tests import optimizer_oracles as oracles

BACKEND = keras.backend.backend()
SETUP = """
import contextlib, json, os, sys
import keras
import numpy as np
import keras_bert_zoo as kbz  # before the devices are configured: importing must not start the backend
devices = int(sys.argv[1])
scope = contextlib.nullcontext()
if devices > 1 and keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * devices)
    scope = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)]).scope()
elif devices > 1:
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices("cpu")))
keras.utils.set_random_seed(3)
"""
CLASSIFIER = """
from tests.helpers import TINY, WORDS
words = WORDS[5:]
texts = [" ".join(words[(i * 7 + j) % len(words)] for j in range(1 + i % 9)) for i in range(21)]
labels = [i % 3 for i in range(21)]
with scope:
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0)
    preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 16)
    model = kbz.BertTextClassifier(backbone, 3, dropout=0.0, preprocessor=preprocessor)
    model.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in model.weights])
history = model.fit(texts, labels, batch_size=8, epochs=3, verbose=0, validation_data=(texts, labels)).history
print(json.dumps({
    "val_accuracy": history["val_accuracy"],
    "logits": model.predict(texts, batch_size=8, verbose=0).tolist(),
}))
"""


PRETRAINER = """
import tempfile, pathlib
from tests.helpers import TINY, WORDS
folder = pathlib.Path(tempfile.mkdtemp())
words = WORDS[5:]
lines = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(3 + i % 5)) for i in range(240)]
(folder / "text").write_text("\\n\\n".join("\\n".join(lines[i : i + 6]) for i in range(0, 240, 6)))
tokenizer = kbz.BertTokenizer(WORDS)
options = {"sequence_length": 16, "verbose": False}
kbz.pretraining.prepare([folder / "text"], folder / "data", tokenizer, **options)
batches = kbz.pretraining.PretrainingBatches(folder / "data", 8, epoch_batches=10)
with scope:
    model = kbz.BertPretrainer(kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0))
    model.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(scale=0.3, size=w.shape) + (w.name == "gamma") for w in model.weights])
history = model.fit(batches, epochs=2, verbose=0).history
print(json.dumps({"loss": history["loss"], "weights": [keras.ops.convert_to_numpy(w).tolist() for w in model.weights]}))
"""


# Six windows in batches of 5: neither batch divides into 2 parts.
ANSWERER = """
from tests import question_answerer_test as cases
from tests.helpers import TINY, WORDS
with scope:
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0, pooler=False)
    preprocessor = kbz.BertQuestionPreprocessor(kbz.BertTokenizer(WORDS), 16, stride=3, question_length=4)
    model = kbz.BertQuestionAnswerer(backbone, preprocessor=preprocessor)
    model.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in model.weights])
x = (cases.QUESTIONS[:3], cases.CONTEXTS[:3])
y = cases.ANSWERS[:3]
history = model.fit(x, y, batch_size=5, epochs=3, verbose=0, validation_data=(x, y)).history
logits = [row for rows in model.predict(x, 5, verbose=0) for row in rows]
# The output bias shifts all tokens alike: its gradient is rounding, which Adam makes steps of.
logits = [(row - row.mean(-1, keepdims=True)).tolist() for row in logits]
print(json.dumps({"val_accuracy": history["val_accuracy"], "logits": logits}))
"""


# Batches of 4 rows at once or in two parts, some of them clipped; and a row that overflows, on the second device.
OPTIMIZERS = """
from tests import optimizer_oracles as oracles
def schedule():
    return kbz.WarmupPolynomialDecay(0.1, warmup=0.5, total_steps=4, power=2.0)
weights = {}
with scope:
    for kind in (kbz.AdamW, kbz.Lamb):
        for steps, batch_size in ((None, 4), (2, 2)):
            optimizer = kind(schedule(), global_clipnorm=2.5, gradient_accumulation_steps=steps)
            weights[f"{kind.__name__} {steps}"] = oracles.fit(optimizer, batch_size)
    x = oracles.X.copy()
    x[3] = np.inf
    optimizer = kbz.LossScaleOptimizer(kbz.AdamW(0.1, gradient_accumulation_steps=2), initial_scale=8.0)
    weights["scaled"] = oracles.fit(optimizer, 2, x)
scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
print(json.dumps({"scale": scale, **{k: {n: w.tolist() for n, w in v.items()} for k, v in weights.items()}}))
"""


def run(script, devices):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SETUP + script, str(devices)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="Keras distributes on TensorFlow and JAX only")


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_devices_train_like_one(devices):
    """21 examples in batches of 8: the last batch of 5 divides into neither 2 nor 4 parts."""
    one, several = run(CLASSIFIER, 1), run(CLASSIFIER, devices)
    np.testing.assert_allclose(several["val_accuracy"], one["val_accuracy"], atol=1e-6)
    np.testing.assert_allclose(several["logits"], one["logits"], atol=1e-5)


@pytest.mark.slow
def test_several_devices_answer_like_one():
    one, several = run(ANSWERER, 1), run(ANSWERER, 2)
    np.testing.assert_allclose(several["val_accuracy"], one["val_accuracy"], atol=1e-6)
    for ours, expected in zip(several["logits"], one["logits"], strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_devices_pretrain_like_one(devices):
    """20 steps; the devices' shares of a batch have different numbers of predictions."""
    one, several = run(PRETRAINER, 1), run(PRETRAINER, devices)
    np.testing.assert_allclose(several["loss"], one["loss"], rtol=1e-5)
    assert len(one["weights"]) == len(several["weights"])
    for x, y in zip(one["weights"], several["weights"], strict=True):
        np.testing.assert_allclose(y, x, atol=1e-5)


def test_several_devices_take_the_step_of_the_oracle():
    """Clipping, accumulation and loss scaling, as optimizers_test.py has them on one device."""
    several = run(OPTIMIZERS, 2)
    rows, rates = np.arange(16).reshape(4, 4), [0.0, 0.05, 0.025, 0.00625]
    expected = {
        f"{name} {steps}": oracles.fit_oracle(rule, rows, rates, clipnorm=2.5)
        for name, rule in (("AdamW", oracles.adamw), ("Lamb", oracles.lamb))
        for steps in (None, 2)
    }
    rows = [[0, 1, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13]]
    expected["scaled"] = oracles.fit_oracle(oracles.adamw, rows, [0.1] * 3)
    assert several.pop("scale") == 4.0
    assert several.keys() == expected.keys()
    for case, weights in expected.items():
        for name, value in weights.items():
            np.testing.assert_allclose(several[case][name], value, atol=2e-5, err_msg=f"{case} {name}")

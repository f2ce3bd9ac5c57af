"""Fitting on several devices gives what one device gives; each run in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

BACKEND = keras.backend.backend()
SCRIPT = """
import contextlib, json, os, sys
import keras
import numpy as np
import keras_bert_zoo as kbz  # before the devices are configured: importing must not start the backend
from tests.helpers import TINY, WORDS
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
words = WORDS[5:]
texts = [" ".join(words[(i * 7 + j) % len(words)] for j in range(1 + i % 9)) for i in range(21)]
labels = [i % 3 for i in range(21)]
with scope:
    backbone = kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0)
    preprocessor = kbz.BertTextClassifierPreprocessor(kbz.BertTokenizer(WORDS), 16)
    model = kbz.BertTextClassifier(backbone, 3, dropout=0.0, preprocessor=preprocessor)
    model.compile(optimizer=kbz.AdamW(kbz.WarmupLinearDecay(1e-3)))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in model.weights])
history = model.fit(texts, labels, batch_size=8, epochs=3, verbose=0, validation_data=(texts, labels)).history
print(json.dumps({
    "val_accuracy": history["val_accuracy"],
    "logits": model.predict(texts, batch_size=8, verbose=0).tolist(),
}))
"""


def run(devices):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(devices)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(BACKEND == "torch", reason="Keras distributes on TensorFlow and JAX only")
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_devices_train_like_one(devices):
    """21 examples in batches of 8: the last batch of 5 divides into neither 2 nor 4 parts."""
    one, several = run(1), run(devices)
    np.testing.assert_allclose(several["val_accuracy"], one["val_accuracy"], atol=1e-6)
    np.testing.assert_allclose(several["logits"], one["logits"], atol=1e-5)

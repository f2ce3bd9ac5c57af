"""Fitting on several devices gives what one device gives; each run has a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.training.distribution import is_chief
from tests import optimizer_oracles as oracles
from tests.helpers import SHALLOW, WORDS, numpy, slow_on
from tests.tiny_pretraining import CLIPPED, assert_same, train, write_data, write_tfrecords
from tests.tiny_pretraining import run as train_on_one

BACKEND = keras.backend.backend()
SETUP = """
import json, os, sys
import keras
import numpy as np
import keras_bert_zoo as kbz  # before the devices are configured: importing must not start the backend
devices = int(sys.argv[1])
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * devices)
names = {"tensorflow": "mirrored", "jax": "data_parallel"}
strategy = names[keras.backend.backend()] if devices > 1 else None
scope = kbz.distribute(strategy)
keras.utils.set_random_seed(3)
"""
# On one device and on several, in one process: most of the time goes to its start.
CLASSIFIER = """
from tests.helpers import SHALLOW, WORDS, Batches
words = WORDS[5:]
texts = [" ".join(words[(i * 7 + j) % len(words)] for j in range(1 + i % 9)) for i in range(21)]
labels = [i % 3 for i in range(21)]
found = []
for several in (None, strategy):
    with kbz.distribute(several):
        backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0)
        preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 16)
        model = kbz.BertTextClassifier(backbone, 3, dropout=0.0, preprocessor=preprocessor)
        model.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
        rng = np.random.default_rng(0)
        model.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in model.weights])
        keras.utils.set_random_seed(3)
        history = model.fit(texts, labels, batch_size=8, epochs=3, verbose=0, validation_data=(texts, labels)).history
        logits = model.predict(texts, batch_size=8, verbose=0).tolist()
        on_batch = model.predict_on_batch(model.preprocessor(texts[:3])).tolist()
        features = kbz.extract_features(model, texts, layers=(0, -1), batch_size=5)
        features = [[tokens, values.tolist()] for tokens, _, values in features]
        arrays = model.preprocessor(texts)
        batches = [({k: a[i : i + 8] for k, a in arrays.items()}, np.array(labels[i : i + 8])) for i in (0, 16)]
        streams, refused = [Batches(*batches)], []
        if keras.backend.backend() == "tensorflow" and several:
            streams.append(tf.data.Dataset.from_tensor_slices((arrays, labels)).batch(8))
        for stream in streams:
            try:
                model.evaluate(stream, verbose=0)
            except Exception as error:
                refused.append(str(error))
    scores = {name: history[name] for name in ("val_loss", "val_accuracy")}
    found.append({**scores, "logits": logits, "on_batch": on_batch, "features": features, "refused": refused})
print(json.dumps(found))
"""

TAGGER = """
from tests.helpers import SHALLOW, WORDS
words = WORDS[5:]
sentences = [[words[(i * 7 + j) % len(words)] for j in range(1 + i % 9)] for i in range(11)]
tags = [[(i + j) % 3 for j in range(1 + i % 9)] for i in range(11)]
with scope:
    backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0, pooler=False)
    preprocessor = kbz.BertWordPreprocessor(kbz.BertTokenizer(WORDS), 16)
    model = kbz.BertTokenClassifier(backbone, 3, dropout=0.0, preprocessor=preprocessor)
    model.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
rng = np.random.default_rng(0)
model.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in model.weights])
history = model.fit(sentences, tags, batch_size=8, epochs=3, verbose=0, validation_data=(sentences, tags)).history
logits = np.concatenate(model.predict(sentences, batch_size=8, verbose=0))
print(json.dumps({**{k: v for k, v in history.items() if k.startswith("val")}, "logits": logits.tolist()}))
"""


PRETRAINER = """
from tests.tiny_pretraining import train
results = {name: train(sys.argv[2], name) for name in [None, *sys.argv[3:]]}
if keras.backend.backend() == "jax":
    with kbz.distribute("model_parallel"):
        table = kbz.BertEmbeddings(41, 8)
        table.build((None, None))
    results["of 41"] = table.token_embedding.embeddings.value.sharding.shard_shape((41, 8))
print(json.dumps(results))
"""


# Six windows in batches of 5: neither batch divides into 2 parts.
ANSWERER = """
from tests import question_answerer_test as cases
from tests.helpers import SHALLOW, WORDS
with scope:
    backbone = kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0, pooler=False)
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
scores = {name: history[name] for name in ("val_loss", "val_accuracy")}
print(json.dumps({**scores, "logits": logits}))
"""


# Eleven examples in batches of 4 and 3.
OTHERS = """
from tests.helpers import SHALLOW, WORDS
words = WORDS[5:]
texts = [" ".join(words[(i * 7 + j) % len(words)] for j in range(1 + i % 9)) for i in range(11)]
choices = [[texts[(i + j) % 11] for j in range(1, 2 + i % 3)] for i in range(11)]
tokenizer = kbz.BertTokenizer(WORDS)
plain = {"preprocessor": kbz.BertPreprocessor(tokenizer, 16)}
still = {**plain, "dropout": 0.0}
cases = {
    "regressor": (kbz.BertTextRegressor, still, texts, [i / 3 for i in range(11)]),
    "choices": (
        kbz.BertMultipleChoice, {**still, "preprocessor": kbz.BertMultipleChoicePreprocessor(tokenizer, 16)},
        (texts, choices), [0] * 11,
    ),
    "features": (
        kbz.BertFeatureTokenClassifier,
        {"preprocessor": kbz.BertWordPreprocessor(tokenizer, 16), "num_classes": 3, "units": 4, "dropout": 0.0,
         "num_layers": 1, "hidden_layers": [0, -1], "combine": "weighted_sum"},
        [text.split() for text in texts], [[len(word) % 3 for word in text.split()] for text in texts],
    ),
    "embedder": (kbz.BertTextEmbedder, plain, texts, np.random.default_rng(1).normal(size=(11, 8))),
    "predictor": (kbz.BertNextSentencePredictor, plain, (texts, texts[::-1]), [i % 2 for i in range(11)]),
}
models = {}
for name, (kind, options, _, _) in cases.items():
    with kbz.distribute(strategy):  # A scope each, as in a notebook.
        models[name] = kind(kbz.BertBackbone(**SHALLOW, dropout=0.0, attention_dropout=0.0), **options)
        models[name].compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(1e-3)))
results = {}
for name, (_, _, x, y) in cases.items():
    model = models[name]
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in model.weights])
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    found = model.predict(x, batch_size=4, verbose=0)
    # What all choices share has a gradient of rounding alone, which Adam makes steps of.
    results[name] = [np.asarray(row - row.mean() if name == "choices" else row).tolist() for row in found]
with kbz.distribute(strategy):
    masked = kbz.BertMaskedLM(kbz.BertBackbone(**SHALLOW), plain["preprocessor"])
masked.set_weights([rng.normal(scale=0.5, size=w.shape) + (w.name == "gamma") for w in masked.weights])
filled = [masked.fill_mask("a [MASK] film"), *masked.fill_mask(["bad [MASK]", "[MASK]", "so [MASK] [MASK]"])]
results["blanks"] = [[probability for _, probability in blank] for blanks in filled for blank in blanks]
print(json.dumps(results))
"""


# Without dropout, as one device and two replicas drop different values.
FINETUNING = """
from pathlib import Path
from keras_bert_zoo.finetuning import Run, finetune
from keras_bert_zoo.training.distribution import replicas
from tests import finetuning_test as cases
from tests.helpers import SHALLOW, WORDS, randomise
folder = Path(sys.argv[2])
backbone = kbz.BertBackbone(**{**SHALLOW, "max_sequence_length": 80}, dropout=0.0, attention_dropout=0.0)
start = kbz.BertMaskedLM(backbone, kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 80))
randomise(start).save_to_preset(folder / "start")
for part in ("train", "dev"):
    cases.squad2(folder / "data", part)
options = {**cases.OPTIONS, "learning_rate": 1e-3, "strategy": strategy}
fit, seen = kbz.BertQuestionAnswerer.fit, []
kbz.BertQuestionAnswerer.fit = lambda model, *x, **y: (seen.append(replicas(model)), fit(model, *x, **y))[1]
finetune(Run("squad2", folder / "start", data=folder / "data", **options), folder / "run", verbose=0)
print(json.dumps(seen))
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
optimized = {"scale": scale, **{k: {n: w.tolist() for n, w in v.items()} for k, v in weights.items()}}
"""


DROPPED = """
import json
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from keras_bert_zoo.layers.dropout import _in_jax
mesh = Mesh(np.reshape(jax.devices(), (2, 2)), ("batch", "model"))
x, key = jax.numpy.ones((8, 16, 32)), jax.random.key(3)
drop = jax.jit(_in_jax, static_argnums=1)
expected, found = np.asarray(drop(x, 0.5, key)), []
for axes in (["batch"], ["batch", None, "model"], [None, "model"]):
    shares = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
    program = drop.lower(shares, 0.5, key).compile()
    same = np.array_equal(program(shares, key), expected)
    found.append([same, any(word in program.as_text() for word in ("all-", "reduce-scatter", "collective-permute"))])
print(json.dumps([found, expected.sum()], default=float))
"""

DROPPED_BY_REPLICAS = """
from keras_bert_zoo.layers import dropout
from tests.helpers import SHALLOW
dropped = []
with kbz.distribute(strategy):
    replicas, backbone = tf.distribute.get_strategy(), kbz.BertBackbone(**SHALLOW)
    tasks = [
        kbz.BertTextClassifier(backbone, num_classes=2, dropout=0.5),
        kbz.BertTextRegressor(backbone, dropout=0.5),
        kbz.BertTokenClassifier(backbone, num_classes=2, dropout=0.5),
        kbz.BertMultipleChoice(backbone, dropout=0.5),
    ]
    layers = [layer for task in tasks for layer in task.layers if isinstance(layer, keras.layers.Dropout)]
    for on_cpu in (True, False):
        dropout.on_cpu = lambda inputs: on_cpu
        for layer in layers:
            drop = tf.function(lambda: replicas.run(lambda: layer(tf.ones((64, 64)), training=True)))
            for _ in range(2):
                dropped += [values.numpy().ravel().tolist() for values in replicas.experimental_local_results(drop())]
"""


def start(script, devices, *arguments, **variables):
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", script, str(devices), *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    return json.loads(out.splitlines()[-1])


def run(script, devices, *arguments):
    return result(start(SETUP + script, devices, *arguments))


@pytest.fixture(scope="module")
def on_two():
    """What two devices make of two scripts, in one process."""
    script = OPTIMIZERS + (DROPPED_BY_REPLICAS if BACKEND == "tensorflow" else "dropped = None\n")
    return run(script + "print(json.dumps([optimized, dropped]))", 2)


pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="Keras distributes on TensorFlow and JAX only")


@slow_on("jax")
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_devices_train_like_one(devices):
    """21 examples in batches of 8: the last batch of 5 divides into neither 2 nor 4 parts."""
    one, several = run(CLASSIFIER, devices)
    np.testing.assert_allclose(several["val_accuracy"], one["val_accuracy"], atol=1e-6)
    np.testing.assert_allclose(several["val_loss"], one["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(several["logits"], one["logits"], atol=1e-5)
    np.testing.assert_allclose(several["on_batch"], one["logits"][:3], atol=1e-5)
    for (tokens, values), (expected_tokens, expected) in zip(several["features"], one["features"], strict=True):
        assert tokens == expected_tokens
        np.testing.assert_allclose(values, expected, atol=1e-5)
    # Streamed batches are not filled with copies.
    assert (one["refused"], len(several["refused"])) == ([], 2 if BACKEND == "tensorflow" else 1)
    for error in several["refused"]:
        assert f"must have batches divisible by the number of replicas, {devices}" in error
        assert "Received: a batch of 5" in error


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_several_devices_tag_like_one(devices):
    """11 sentences in batches of 8, with different numbers of words on each device."""
    one, several = run(TAGGER, 1), run(TAGGER, devices)
    assert one.keys() == several.keys() == {"val_loss", "val_accuracy", "logits"}
    for name, expected in one.items():
        np.testing.assert_allclose(several[name], expected, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_several_devices_answer_like_one():
    one, several = run(ANSWERER, 1), run(ANSWERER, 2)
    np.testing.assert_allclose(several["val_accuracy"], one["val_accuracy"], atol=1e-6)
    np.testing.assert_allclose(several["val_loss"], one["val_loss"], rtol=1e-5)
    for ours, expected in zip(several["logits"], one["logits"], strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.slow
def test_several_devices_do_every_other_task_like_one():
    one, several = run(OTHERS, 1), run(OTHERS, 2)
    assert several.keys() == one.keys() == {"regressor", "choices", "features", "embedder", "predictor", "blanks"}
    for name, rows in one.items():
        for ours, expected in zip(several[name], rows, strict=True):
            np.testing.assert_allclose(ours, expected, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_fine_tuning_run_on_several_devices_is_that_on_one(tmp_path):
    """The run goes from files to a preset and names the strategy; it has eight windows in batches of four."""
    for devices in (1, 2):
        assert run(FINETUNING, devices, tmp_path / str(devices)) == [devices]
    one, two = (kbz.BertQuestionAnswerer.from_preset(tmp_path / str(i) / "run" / "preset") for i in (1, 2))
    for x, y in zip(one.weights, two.weights, strict=True):
        np.testing.assert_allclose(numpy(y), numpy(x), atol=1e-5, err_msg=x.path)
    assert json.loads((tmp_path / "2" / "run" / "run.json").read_text())["strategy"] is not None


@slow_on("tensorflow")
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_devices_pretrain_like_one(devices, tmp_path):
    """20 steps; the devices' shares of a batch have different numbers of predictions."""
    names = ["mirrored"] if BACKEND == "tensorflow" else ["data_parallel", "model_parallel", "model_parallel:2"]
    results = run(PRETRAINER, devices, write_data(tmp_path), *names[: 1 + devices // 2])
    one = results.pop("null")
    if BACKEND == "jax":
        assert results.pop("of 41") == [41, 8]  # Neither 2 nor 4 divides 41.
        shares = results["model_parallel"]["shares"]
        assert shares["embeddings/token_embedding/embeddings"] == [40 // devices, 8]
        assert shares["encoder_layer_1/attention/qkv/kernel"] == [8, 24 // devices]
        assert shares["encoder_layer_1/attention/output/kernel"] == [8 // devices, 8]
        assert shares["encoder_layer_1/intermediate/bias"] == [16 // devices]
        assert shares["encoder_layer_1/output/kernel"] == [16 // devices, 8]
        assert shares["mlm_bias/bias"] == [40 // devices]
        assert shares["pooler/kernel"] == results["data_parallel"]["shares"]["pooler/kernel"] == [8, 8]
        assert len([path for path, share in shares.items() if share != one["shares"][path]]) == 2 + 2 * 6
    assert len(results) == len(names[: 1 + devices // 2])
    for other in results.values():
        assert_same(one, other)


def save_start(path):
    """Save the preset that runs in several processes begin with."""
    preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 16)
    kbz.BertPretrainer(kbz.BertBackbone(**SHALLOW), preprocessor).save_to_preset(path)


def assert_same_presets(folder, one, *others):
    """Check that the presets of other runs have the weights of the first."""
    expected = kbz.BertPretrainer.from_preset(folder / one / "preset").weights
    for name in others:
        found = kbz.BertPretrainer.from_preset(folder / name / "preset").weights
        for x, y in zip(expected, found, strict=True):
            np.testing.assert_allclose(numpy(y), numpy(x), atol=1e-5, err_msg=f"{name} {x.path}")


def two_workers(script, *arguments):
    """Return what each of two processes that train together prints; a script's last argument is its process' number."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0)), second.bind(("127.0.0.1", 0))
        cluster = {"worker": [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]}
    workers = [
        start(script, 1, *arguments, index,
              TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}))
        for index in range(2)
    ]  # fmt: skip
    return list(map(result, workers))


WORKER = """
import json, sys
import keras
import safetensors.numpy
import keras_bert_zoo as kbz
from tests.tiny_pretraining import CLIPPED, run, train
data, start, out, worker = sys.argv[2:]
results = [train(data, "multi_worker", **options) for options in ({}, CLIPPED)]
if worker == "1":  # It has nothing to write.
    keras.callbacks.CSVLogger = kbz.pretraining.run.write_json = kbz.BertPretrainer.save_to_preset = None
    safetensors.numpy.save_file = None
run(data, start, out, "multi_worker", stop=True)
run(data, start, out, "multi_worker")
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's strategy")
def test_two_workers_pretrain_like_one_device(tmp_path):
    """fit and evaluate, with clipping and accumulation; then a run is broken off, taken up, and written once."""
    data, begin = write_data(tmp_path), str(tmp_path / "start")
    expected = [train(data, **options) for options in ({}, CLIPPED)]
    save_start(begin)
    train_on_one(data, begin, tmp_path / "one")
    for results in two_workers(WORKER, data, begin, tmp_path / "two"):
        for one, both in zip(expected, results, strict=True):
            assert_same(one, both)
    assert_same_presets(tmp_path, "one", "two")
    assert json.loads((tmp_path / "two" / "run.json").read_text())["strategy"] == "multi_worker"


RECORDS = """
import json, sys
from tests.tiny_pretraining import run
data, start, out, strategy = sys.argv[2:6]
run(data, start, out, json.loads(strategy))
print("{}")
"""


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's strategies")
def test_runs_from_tfrecords_on_devices_and_workers(tmp_path):
    """With accumulation, two devices, and two workers that are broken off and taken up, get the weights of one."""
    data, begin = write_tfrecords(tmp_path), str(tmp_path / "start")
    save_start(begin)
    for devices, name, strategy in ((1, "one", "null"), (2, "devices", '"mirrored"')):
        run(RECORDS, devices, data, begin, tmp_path / name, strategy)
    script = RECORDS.replace("run(data", "run(data, start, out, json.loads(strategy), stop=True)\nrun(data")
    assert two_workers(script, data, begin, tmp_path / "workers", '"multi_worker"') == [{}, {}]
    assert_same_presets(tmp_path, "one", "devices", "workers")


def test_several_devices_take_the_step_of_the_oracle(on_two):
    """Clipping, accumulation and loss scaling, as optimizers_test.py has them on one device."""
    several, _ = on_two
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


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX has no replicas")
def test_each_replica_drops_values_of_its_own_in_each_step(on_two):
    """Four heads' layers, two replicas, two steps, on a CPU and elsewhere: all are uncorrelated."""
    _, dropped = on_two
    correlations = np.corrcoef(dropped)
    assert correlations.shape == (32, 32)
    np.testing.assert_allclose(correlations, np.eye(32), atol=0.1)  # A standard deviation is 1.6 %.


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's dropout")
def test_devices_drop_what_one_drops_of_their_shares():
    """No device asks another for it."""
    found, total = result(start(DROPPED, 4))
    assert found == [[True, False]] * 3
    assert total == pytest.approx(8 * 16 * 32, rel=0.05)  # Half of them, doubled; a standard deviation is 1.6 %.


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX's processes")
@pytest.mark.parametrize("number", [0, 1])
def test_the_first_process_writes(number, monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: number)
    assert is_chief() is (number == 0)


PROCESS = """
import json, sys
import jax
address, number, data, begin, out = sys.argv[2:]
jax.distributed.initialize(address, 2, int(number))
import keras_bert_zoo as kbz
from keras_bert_zoo.training.distribution import differs_among_workers
from tests.tiny_pretraining import run
found = [jax.process_count(), differs_among_workers(7), differs_among_workers(int(number))]
for strategy in ("model_parallel", "model_parallel:2"):
    try:
        kbz.distribute(strategy)
    except ValueError as error:
        found.append(str(error))
run(data, begin, out, "data_parallel", stop=True)
run(data, begin, out, "data_parallel")
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "jax", reason="of JAX's processes")
def test_two_processes_train_from_records_and_share_no_model(tmp_path):
    """They compare where they begin, and a run that is broken off and taken up gets the weights of one device."""
    data, begin = write_tfrecords(tmp_path), str(tmp_path / "start")
    save_start(begin)
    train_on_one(data, begin, tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [start(PROCESS, 2, address, number, data, begin, tmp_path / "two") for number in range(2)]
    for found in map(result, processes):
        *same, refused = found
        assert same == [2, False, True]
        assert refused.endswith("strategy='model_parallel', 2 processes of 2 devices")
    assert_same_presets(tmp_path, "one", "two")

"""Shared by many tests: tiny configurations, inputs, and one test of saving for every class."""

import copy
import importlib.util
import inspect
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_zoo as kbz
from keras_bert_zoo.training.runs import SaveState

REPOSITORY = Path(kbz.__file__).parents[1]

TINY = {
    "vocabulary_size": 40,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": 16,
}
# For tests that do not depend on the number of layers: one layer compiles in two thirds of the time.
SHALLOW = {**TINY, "num_layers": 1}
WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bad", "good", "film", "fine", "dull", "very", "not", "so",
    "and", "long", "##er", "##est", "it", "is", ".", ",", "!", "was", "the", "plot", "cast", "warm", "cold", "slow",
]  # fmt: skip
TEXTS = ["a good film", "bad", "the plot was dull and very , very long .", "it is fine", "warm cast !", "so slow"]
LABELS = [0, 1, 1, 2, 0, 1]


def slow_on(*backends):
    """Mark a test as slow on backends where it compiles for long; the other backends always run it."""
    return pytest.mark.slow if keras.backend.backend() in backends else pytest.mark.skipif(False, reason="is quick")


def left_to_torch():
    """Whether a test that does not depend on the backend is left to PyTorch's pass: once is enough."""
    return keras.backend.backend() != "torch" and importlib.util.find_spec("torch") is not None


def run_python(code, *arguments, **environment):
    """Run code with our package in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],  # -P: not from the folder that the test runs in.
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextmanager
def short_error(*words, longest=300):
    """Expect a `ValueError` of one short line with all of these words."""
    with pytest.raises(ValueError) as error:
        yield
    message = str(error.value)
    assert all(word in message for word in words), message
    assert len(message) < longest
    assert "\n" not in message


@contextmanager
def other_weights(preset):
    """Change the first weight of a preset's embeddings by the least possible meanwhile."""
    path = Path(preset, "model.safetensors")
    before, weights = path.read_bytes(), load_file(path)
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    changed = weights[name].copy()
    changed[0, 0] = np.nextafter(changed[0, 0], np.float32(1))
    save_file({**weights, name: changed}, path, metadata={"format": "pt"})
    try:
        yield
    finally:
        path.write_bytes(before)


@contextmanager
def broken_off(after=0):
    """Interrupt the run within, as by Ctrl+C, once its state of this epoch is saved."""
    save = SaveState.on_epoch_end

    def save_and_stop(self, epoch, logs=None):
        save(self, epoch, logs)
        if epoch == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SaveState, "on_epoch_end", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            yield


class Batches(keras.utils.PyDataset):
    """A user's own data set."""

    def __init__(self, *batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def streams(*batches):
    """Return these batches in each form that Keras accepts."""
    made = [Batches(*batches), (batch for batch in batches)]
    if keras.backend.backend() == "torch":
        from torch.utils.data import DataLoader

        made.append(DataLoader(list(batches), batch_size=None))
    return made


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def ids_of(tokenizer, texts):
    """Return the ids of each text as a list."""
    token_ids, lengths = tokenizer.encode_batch(texts)
    ends, flat = np.cumsum(lengths).tolist(), token_ids.tolist()
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def random_inputs(batch=3, length=9, vocabulary_size=40, num_segments=2, seed=0):
    """Return token ids with every segment type and, in all rows but the first, padding."""
    rng = np.random.default_rng(seed)
    lengths = np.r_[length, rng.integers(2, length, batch - 1)]
    mask = (np.arange(length) < lengths[:, None]).astype("int32")
    segments = (np.arange(length) >= length // 2).astype("int32") * mask * (num_segments > 1)
    ids = rng.integers(0, vocabulary_size, (batch, length)).astype("int32") * mask
    return {"token_ids": ids, "segment_ids": segments.astype("int32"), "padding_mask": mask}


def randomise(model, seed=0, scale=0.2):
    """Fill every weight, including biases and LayerNorm, so that no term of a formula is hidden by a zero."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        value = rng.normal(scale=scale, size=weight.shape) + (weight.name == "gamma")
        weight.assign(value.astype("float32"))
    return model


def check_saving(build, inputs, tmp_path, as_model=None):
    """Check a serialisable class: a config of all its arguments, and a `.keras` file with the same outputs.

    All layers within it must be known to Keras, too: they are what a functional model over its outputs is saved with.

    Args:
        build: Function that makes the object.
        inputs: Inputs of the model.
        tmp_path: Directory for the file.
        as_model: Function that wraps a layer in a model; None if `build` makes a model.
    """
    built = build()
    config = keras.saving.serialize_keras_object(built)
    assert {*inspect.signature(type(built).__init__).parameters} - {"self", "kwargs"} <= config["config"].keys()
    again = keras.saving.deserialize_keras_object(copy.deepcopy(config))  # Keras writes into what it reads
    assert type(again) is type(built)
    assert keras.saving.serialize_keras_object(again) == config
    model = randomise(as_model(built) if as_model else built)
    for kind in {type(layer) for layer in model._flatten_layers()}:
        name = keras.saving.get_registered_name(kind)
        assert kind.__module__.startswith("keras.") or keras.saving.get_registered_object(name) is kind
    before = model(inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    after = loaded(inputs)
    for x, y in zip(keras.tree.flatten(before), keras.tree.flatten(after), strict=True):
        np.testing.assert_array_equal(numpy(x), numpy(y))
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    return loaded


def gradients(model, inputs, loss):
    """Return d loss(model(inputs)) / d weight by path, on any backend."""
    weights = model.trainable_weights
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss(model(inputs))
        grads = [tf.convert_to_tensor(grad) for grad in tape.gradient(value, [w.value for w in weights])]
    elif keras.backend.backend() == "jax":
        import jax

        def pure(values):
            outputs, _ = model.stateless_call(values, [v.value for v in model.non_trainable_variables], inputs)
            return loss(outputs)

        grads = jax.jit(jax.grad(pure))([w.value for w in weights])  # Without jit it takes ten times as long.
    else:
        model.zero_grad()
        loss(model(inputs)).backward()
        grads = [w.value.grad for w in weights]
    return {w.path: numpy(grad) for w, grad in zip(weights, grads, strict=True)}


def on_devices(script, count=4):
    """Run a script in its own process, in which JAX has `count` devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    run_python(script, XLA_FLAGS=flags)


def tensorflow_nodes(function, *arguments):
    """Return the operations in a function's graph and in the functions that it calls."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    return [node for part in (graph.node, *(called.node_def for called in graph.library.function)) for node in part]


def tensorflow_operations(function, *arguments):
    """Return the types of these operations."""
    return [node.op for node in tensorflow_nodes(function, *arguments)]


def assert_rounded_once(found, exact):
    """Check float64 values of bfloat16 against exact ones."""
    # Half a unit in the last of 8 binary places, and what float32 sums lose.
    unit = 2.0**-8 * 2 ** np.ceil(np.log2(np.maximum(np.abs(exact), 1e-6)))
    assert (np.abs(found - exact) <= 0.5005 * unit + 1e-6).all()


def crossentropy(logits, labels):
    """Return the cross-entropy of each row, in float64."""
    logits = logits.astype("float64")
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, np.expand_dims(labels, -1), -1)[..., 0]

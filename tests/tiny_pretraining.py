"""Pre-training that takes a second, for runs on many devices and in many processes."""

import os
import shutil
from contextlib import nullcontext

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.pretraining import PretrainingBatches, Run, prepare, pretrain, records, write_records
from tests.helpers import TINY, WORDS, broken_off, numpy

# AdamW's step does not depend on the gradient's size. This one's does, so it depends on the clipping norm too.
CLIPPED = {"learning_rate": 0.3, "epsilon": 1.0, "global_clipnorm": 0.5, "gradient_accumulation_steps": 2}


def write_data(folder):
    """Write a data set of some sixty examples of 16 tokens."""
    words = WORDS[5:]
    lines = [" ".join(words[(i * 7 + j * j) % len(words)] for j in range(3 + i % 5)) for i in range(240)]
    (folder / "text").write_text("\n\n".join("\n".join(lines[i : i + 6]) for i in range(0, 240, 6)))
    prepare([folder / "text"], folder / "data", kbz.BertTokenizer(WORDS), sequence_length=16, verbose=False)
    return str(folder / "data")


def write_tfrecords(folder):
    """Write the same examples with fixed masks in two files beside the vocabulary; return the pattern of the files."""
    write_data(folder)
    tokenizer = kbz.BertTokenizer(WORDS)
    prepare([folder / "text"], folder / "fixed", tokenizer, sequence_length=16, fix_masks=True, verbose=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(records, "_EXAMPLES_A_FILE", 40)
        write_records(folder / "fixed", folder / "records", verbose=False)
    shutil.copy(folder / "fixed" / "vocab.txt", folder / "records")
    return str(folder / "records" / "*.tfrecord")


def train(data, strategy=None, learning_rate=1e-3, **optimizer):
    """Train 20 steps without dropout; return losses, the share of each weight that a device holds, and the weights."""
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(0)
    with kbz.distribute(strategy):
        batches = PretrainingBatches(data, 8, epoch_batches=10)
        model = kbz.BertPretrainer(kbz.BertBackbone(**TINY, dropout=0.0, attention_dropout=0.0))
        model.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(learning_rate), **optimizer))
        model.set_weights([rng.normal(scale=0.3, size=w.shape) + (w.name == "gamma") for w in model.weights])
        history = model.fit(batches, epochs=2, verbose=0, validation_data=batches).history
        scores = model.evaluate(batches, verbose=0, return_dict=True)
        shares = {}
        if keras.backend.backend() == "jax":
            shares = {w.path: w.value.sharding.shard_shape(w.shape) for w in model.weights}
        return {
            "losses": [*history["loss"], *history["val_loss"], *scores.values()],
            "shares": shares,
            "weights": {w.path: numpy(w).tolist() for w in model.weights},
        }


def assert_same(one, other):
    np.testing.assert_allclose(other["losses"], one["losses"], rtol=1e-5)
    assert one["weights"].keys() == other["weights"].keys()
    for path, weight in one["weights"].items():
        theirs = other["weights"][path]
        if path.endswith("qkv/bias"):
            # A key's bias adds the same to each score of a query, which softmax takes out again: its gradient is zero
            # but for rounding, and Adam makes steps of that. The query's and the value's are compared.
            weight, theirs = np.split(np.array(weight), 3)[::2], np.split(np.array(theirs), 3)[::2]
        np.testing.assert_allclose(theirs, weight, atol=1e-5, err_msg=path)


def run(data, start, out, strategy=None, stop=False):
    """Run 4 steps, or what is left of them; with `stop`, break off in the middle."""
    options = {"steps": 4, "batch_size": 8, "learning_rate": 1e-2, "save_every": 2, "dropout": 0.0}
    if not os.path.isdir(data):
        vocab = os.path.join(os.path.dirname(data), "vocab.txt")
        options |= {"vocab": vocab, "gradient_accumulation_steps": 2, "learning_rate": 1e-3}
    with broken_off() if stop else nullcontext():
        pretrain(Run(data, start, strategy=strategy, **options), out, verbose=0)

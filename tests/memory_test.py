"""Memory that a pass keeps, in processes of their own: pytest's has arrays that come and go."""

import os
import platform

import keras
import pytest

from tests.helpers import left_to_torch, run_python

# Defines `pages`: of two large arrays, one after the other, the second waits for none if memory is kept.
PAGES = """
import resource
import numpy as np

def pages():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.empty(2**26, "uint8").fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
NESTED = """
from keras_bert_zoo.training.memory import memory_kept
print(pages())
with memory_kept():
    with memory_kept():
        print(pages())
    print(pages())
print(pages())
"""
PASSES = """
import keras, keras_bert_zoo as kbz

class Pages(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("fit", pages())

    def on_test_batch_end(self, batch, logs=None):
        print("evaluate", pages())

    def on_predict_batch_end(self, batch, logs=None):
        print("predict", pages())

vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(vocabulary), 16)
model = kbz.BertTextClassifier(kbz.BertBackbone(7, 1, 2, 8, 16), 2, preprocessor=preprocessor)
for work, given in ((model.fit, [["a"], [0]]), (model.evaluate, [["a"], [0]]), (model.predict, [["a"]])):
    work(*given, verbose=0, callbacks=[Pages()])
    print("later", pages())
"""
SETTING = """
import keras_bert_zoo, jax
print(jax.config.read("jax_cpu_enable_async_dispatch"))
"""
TOLD = [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
MANY = 16  # Whatever size the system's pages have: with 2 MB each an array has 32.

is_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="It is glibc that gives memory back.")


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)


@is_glibc
@pytest.mark.skipif(left_to_torch(), reason="It depends on no backend: once is enough.")
def test_memory_is_kept_until_the_outer_context_ends():
    before, inner, outer, after = map(int, run_python(PAGES + NESTED).split())
    assert max(inner, outer) < MANY < min(before, after)


@is_glibc
@pytest.mark.skipif(left_to_torch(), reason="It depends on no backend: once is enough.")
@pytest.mark.parametrize("told", TOLD, ids=["variables", "tunables"])
def test_nothing_changes_if_the_environment_configures_glibc(told):
    assert min(map(int, run_python(PAGES + NESTED, **told).split())) > MANY


@is_glibc
def test_each_pass_keeps_memory_and_returns_it_later():
    rows = [line.split() for line in run_python(PAGES + PASSES).splitlines()]
    assert [name for name, _ in rows] == ["fit", "later", "evaluate", "later", "predict", "later"]
    assert all((int(count) > MANY) == (name == "later") for name, count in rows), rows


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Only JAX runs programs in other threads.")
@pytest.mark.parametrize("told, is_elsewhere", [({}, False), ({"JAX_CPU_ENABLE_ASYNC_DISPATCH": "true"}, True)])
def test_jax_runs_programs_in_the_thread_that_calls_them_unless_told_otherwise(told, is_elsewhere, monkeypatch):
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    assert run_python(SETTING, **told) == f"{is_elsewhere}\n"

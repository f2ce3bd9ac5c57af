"""Memory that a pass keeps, in processes of their own: pytest's has arrays that come and go."""

import os
import platform

import keras
import pytest

from tests.helpers import left_to_torch, run_python

# Defines `pages`: how many pages arrays wait for that are made anew, none if memory is kept. By default glibc returns
# one of 48 MB by itself, but smaller ones as the end of its heap.
PAGES = """
import resource
import numpy as np

def pages():
    return ",".join(str(waited(sizes)) for sizes in ([48], [24] * 4))

def waited(sizes):
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        arrays = [np.empty(size * 2**20, "uint8") for size in sizes]
        for array in arrays:
            array.fill(1)
        del array, arrays
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
"""
NESTED = """
from keras_bert_zoo.training.memory import memory_kept
print(pages())
try:
    with memory_kept():
        with memory_kept():
            print(pages())
        print(pages())
        raise ValueError
except ValueError:
    print(pages())
"""
OVERLAPPING = """
import threading
from keras_bert_zoo.training.memory import memory_kept
began, may_end = threading.Event(), threading.Event()

def other():
    with memory_kept():
        began.set()
        may_end.wait()

thread = threading.Thread(target=other)
with memory_kept():
    thread.start()
    began.wait()
print(pages())
may_end.set()
thread.join()
print(pages())
"""
FORKED = """
import os
from keras_bert_zoo.training.memory import memory_kept
with memory_kept():
    if not os.fork():
        print(pages())
        with memory_kept():
            print(pages())
        print(pages(), flush=True)
        os._exit(0)
    os.wait()
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
backbone, arrays = model.backbone, preprocessor(["a"])
labelled = [["a"], [0]]
works = (model.fit, labelled), (model.evaluate, labelled), (model.predict, [["a"]]), (backbone.predict, [arrays])
for work, given in works:
    work(*given, verbose=0, callbacks=[Pages()])
    print("later", pages())
"""
SETTING = """
import keras_bert_zoo, jax
print(jax.config.read("jax_cpu_enable_async_dispatch"))
"""
TOLD = [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
MANY = 12  # Whatever size the system's pages have: with 2 MB each the smallest array has as many.

is_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="It is glibc that gives memory back.")


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)


def are_kept(counts):
    """Whether each memory is kept; none may be so in part."""
    kept = [{int(count) < MANY for count in both.split(",")} for both in counts]
    assert all(len(each) == 1 for each in kept), counts
    return [each.pop() for each in kept]


@is_glibc
@pytest.mark.skipif(left_to_torch(), reason="It depends on no backend: once is enough.")
@pytest.mark.parametrize(
    "program, expected",
    [
        pytest.param(NESTED, [False, True, True, False], id="nested"),
        pytest.param(OVERLAPPING, [True, False], id="several threads"),
        pytest.param(FORKED, [False, True, False, True], id="forked"),
    ],
)
def test_memory_is_kept_in_a_context(program, expected):
    assert are_kept(run_python(PAGES + program).split()) == expected


@is_glibc
@pytest.mark.skipif(left_to_torch(), reason="It depends on no backend: once is enough.")
@pytest.mark.parametrize("told", TOLD, ids=["variables", "tunables"])
def test_nothing_changes_if_the_environment_configures_glibc(told):
    assert not any(are_kept(run_python(PAGES + NESTED, **told).split()))


@is_glibc
def test_each_pass_keeps_memory_and_returns_it_later():
    names, counts = zip(*(line.split() for line in run_python(PAGES + PASSES).splitlines()), strict=True)
    assert names == ("fit", "later", "evaluate", "later", "predict", "later", "predict", "later")
    assert are_kept(counts) == [name != "later" for name in names]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Only JAX runs programs in other threads.")
@pytest.mark.parametrize("told, is_elsewhere", [({}, False), ({"JAX_CPU_ENABLE_ASYNC_DISPATCH": "true"}, True)])
def test_jax_runs_programs_in_the_thread_that_calls_them_unless_told_otherwise(told, is_elsewhere, monkeypatch):
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    assert run_python(SETTING, **told) == f"{is_elsewhere}\n"

"""What goes to a card on PyTorch, ahead of the card's own work."""

from collections import Counter
from functools import partial

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import LABELS, TEXTS, TINY, random_inputs, randomise

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch's own", allow_module_level=True)

import torch
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

from keras_bert_zoo import torch_sending
from keras_bert_zoo.layers.torch_compiled import _programs
from keras_bert_zoo.sending import sent
from keras_bert_zoo.torch_sending import NumbersSent

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="a card is needed")


@pytest.fixture
def card(monkeypatch):
    """Make another kind of device the card, and return what would be pinned, which needs a real card."""
    pinned = []
    monkeypatch.setattr(torch_sending, "_pinned", lambda tensor: pinned.append(tensor) or tensor)

    def be(kind):
        monkeypatch.setattr(torch_sending, "GPU", kind)
        return pinned

    return be


# --- What is sent


@pytest.mark.parametrize(
    "value, dtype", [(5, "int32"), (0.5, "float32"), (True, "bool"), ([5, 2], "int32"), (np.arange(3.0), "float64")]
)
def test_numbers_are_sent_from_pinned_memory(value, dtype, card):
    pinned = card("meta")
    with NumbersSent():
        tensor = torch.as_tensor(value, dtype=getattr(torch, dtype), device="meta")
    assert tensor.is_meta
    assert str(tensor.dtype) == f"torch.{dtype}"
    assert tensor.shape == np.shape(value)
    assert len(pinned) == 1
    assert not pinned[0].is_meta
    np.testing.assert_array_equal(pinned[0].numpy(), value)


def test_arrays_and_tensors_are_sent_from_pinned_memory(card):
    pinned, weight = card("meta"), torch.ones(1, device="meta")
    here, there, half = torch.arange(6), torch.arange(6, device="meta"), keras.random.normal((3,), dtype="bfloat16")
    array = np.arange(4, dtype="uint32")
    structure = {"here": here, "there": there, "array": array, "half": half, "text": np.array(["a"]), "none": None}
    found = sent((structure, "b"), beside=weight)[0]
    assert found["here"].is_meta
    assert found["there"] is there
    assert found["array"].dtype == keras.ops.convert_to_tensor(array).dtype
    assert found["half"].dtype == torch.bfloat16
    assert (found["text"], found["none"]) == (structure["text"], None)
    assert sorted(tensor.tolist() for tensor in pinned) == sorted([here.tolist(), array.tolist(), half.tolist()])


def test_what_stays_where_it_is_is_not_sent(card):
    pinned, here = card("meta"), torch.ones(2)
    with NumbersSent():
        assert torch.as_tensor(here) is here
        assert torch.tensor(3).item() == 3
        assert torch.tensor(data=3).item() == 3
        assert torch.as_tensor([3], device="cpu").item() == 3
    assert sent(here, beside=here) is here
    assert pinned == []


# --- In a step


def pretrainer(jit_compile=False, num_layers=1):
    keras.utils.set_random_seed(0)
    backbone = kbz.BertBackbone(**{**TINY, "num_layers": num_layers}, dtype="mixed_bfloat16")
    model = randomise(kbz.BertPretrainer(backbone))
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-2, total_steps=10)), jit_compile=jit_compile)
    return model


def classifier(jit_compile=False, optimizer=kbz.AdamW):
    keras.utils.set_random_seed(0)
    model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY), num_classes=3))
    model.compile(optimizer(kbz.WarmupPolynomialDecay(1e-2, total_steps=10)), jit_compile=jit_compile)
    return model


def accumulating(schedule):
    return kbz.AdamW(schedule, gradient_accumulation_steps=2)


def batch_of(model):
    inputs = random_inputs()
    if isinstance(model, kbz.BertTextClassifier):
        return keras.tree.map_structure(torch.from_numpy, (inputs, np.array([0, 2, 1], "int32")))
    inputs["mask_positions"] = np.array([[0, 8], [1, 0], [0, 1]], "int32")
    targets = {"mlm": np.array([[7, 8], [9, 10], [11, 12]], "int32"), "nsp": np.array([0, 1, 1], "int32")}
    weights = {name: np.ones(target.shape, "float32") for name, target in targets.items()}
    return keras.tree.map_structure(torch.from_numpy, (inputs, targets, weights))


class Made(TorchFunctionMode):
    """Counts tensors that are made of numbers for a device."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        is_made = function in (torch.as_tensor, torch.tensor) and not isinstance(args[0], torch.Tensor)
        self.count += is_made and "device" in (kwargs or {})
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [pretrainer, classifier, partial(classifier, optimizer=kbz.Lamb)])
@pytest.mark.parametrize("step", ["train_step", "test_step", "predict_step"])
def test_a_step_sends_all_of_it_and_is_the_same(make, step, card):
    def run(model, batch):
        return [value.tolist() for value in keras.tree.flatten(getattr(model, step)(batch))]

    model = make()
    batch = batch_of(model)
    expected = [run(model, batch) for _ in range(2)]
    model, pinned = make(), card("cpu")
    outputs = run(model, batch)
    pinned.clear()
    with Made() as made:
        assert [outputs, run(model, batch)] == expected
    arrays = keras.tree.flatten(batch)
    assert {id(tensor) for tensor in pinned} >= {id(tensor) for tensor in arrays}
    assert len(pinned) == len(arrays) + made.count
    assert (made.count == 0) == (step == "predict_step")


@pytest.mark.parametrize("make", [pretrainer, classifier])
def test_numbers_of_a_traced_step_are_made_in_its_graph(make, card, traced_only):
    pinned = card("cpu")
    model = make(jit_compile=True)
    batch = batch_of(model)
    model.train_on_batch(*batch)
    model.test_on_batch(*batch)
    assert pinned
    assert not any(isinstance(tensor, FakeTensor) for tensor in pinned)
    programs = _programs[model].values()
    assert len(programs) == 2
    for program in programs:
        assert not program.for_shapes.graph.find_nodes(op="get_attr")


def test_nothing_of_layers_and_updates_passes_python(card, monkeypatch):
    """Only loss and metrics do, whatever the number of weights."""
    card("cpu")
    calls, call = [], NumbersSent.__torch_function__
    monkeypatch.setattr(NumbersSent, "__torch_function__", lambda *given: calls.append(1) or call(*given))
    counts = []
    for num_layers in (1, 2):
        model = pretrainer(num_layers=num_layers)
        batch = batch_of(model)
        model.train_step(batch)
        calls.clear()
        model.train_step(batch)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_fit_evaluate_and_predict_send_their_batches(tokenizer, card):
    def run():
        keras.utils.set_random_seed(0)
        preprocessor = kbz.BertPreprocessor(tokenizer, sequence_length=16)
        model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**TINY), num_classes=3, preprocessor=preprocessor))
        history = model.fit(TEXTS, LABELS, batch_size=4, epochs=2, validation_data=(TEXTS, LABELS), verbose=0).history
        return [history, model.evaluate(TEXTS, LABELS, verbose=0), model.predict(TEXTS, verbose=0).tolist()]

    expected, pinned = run(), card("cpu")
    assert run() == expected
    # They are sent before a step and, because the host is the card here, again in it. Only ids, segments and mask have
    # two dimensions.
    sizes = Counter(len(tensor) for tensor in pinned if tensor.ndim == 2)
    in_fit, evaluated, predicted = [4, 2] * 2 * 2, [6], [6]
    assert not Counter([*in_fit, *evaluated, *predicted] * 3 * 2) - sizes


@on_a_card
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("make", [pretrainer, classifier, partial(classifier, optimizer=accumulating)])
def test_on_a_card_no_step_waits(make, jit_compile):
    model = make(jit_compile)
    batch = batch_of(model)

    def steps():
        model.train_step(batch)
        model.test_step(batch)
        model.predict_step(batch[:1])

    steps()  # Makes the optimizer's variables, and the programs.
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            steps()
    finally:
        torch.cuda.set_sync_debug_mode("default")

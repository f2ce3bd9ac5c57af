"""What a step sends to a card on PyTorch, ahead of what the card does."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TINY, random_inputs, randomise

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch's own", allow_module_level=True)

import torch
from torch.overrides import TorchFunctionMode

from keras_bert_zoo import torch_sending
from keras_bert_zoo.sending import sent
from keras_bert_zoo.torch_sending import NumbersSent


@pytest.fixture
def card(monkeypatch):
    """Has another kind of device be the card, and returns what is pinned; without a card PyTorch pins nothing."""
    pinned = []

    def pin(tensor):
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)

    def be(kind):
        monkeypatch.setattr(torch_sending, "CARD", kind)
        return pinned

    return be


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


def test_a_batch_is_sent_from_pinned_memory(card):
    pinned, weight = card("meta"), torch.ones(1, device="meta")
    here, there = torch.arange(6), torch.arange(6, device="meta")
    batch = sent(({"here": here, "there": there}, "text", None), beside=weight)
    assert batch[0]["here"].is_meta
    assert batch[0]["there"] is there
    assert batch[1:] == ("text", None)
    assert len(pinned) == 1
    assert pinned[0] is here


def test_what_stays_where_it_is_is_not_sent(card):
    pinned, here = card("meta"), torch.ones(2)
    with NumbersSent():
        assert torch.as_tensor(here) is here
        assert torch.tensor(3).item() == 3
        assert torch.as_tensor([3], device="cpu").item() == 3
    assert sent(here, beside=here) is here
    assert pinned == []


def pretrainer(jit_compile=False, num_layers=1):
    keras.utils.set_random_seed(0)
    backbone = kbz.BertBackbone(**{**TINY, "num_layers": num_layers}, dtype="mixed_bfloat16")
    model = randomise(kbz.BertPretrainer(backbone))
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-2, total_steps=10)), jit_compile=jit_compile)
    return model


def batch():
    inputs = {**random_inputs(), "mask_positions": np.array([[0, 8], [1, 0], [0, 1]], "int32")}
    targets = {"mlm": np.array([[7, 8], [9, 10], [11, 12]], "int32"), "nsp": np.array([0, 1, 1], "int32")}
    weights = {name: np.ones(target.shape, "float32") for name, target in targets.items()}
    return keras.tree.map_structure(torch.from_numpy, (inputs, targets, weights))


def values(logs):
    return {name: float(value) for name, value in logs.items()}


class Made(TorchFunctionMode):
    """Counts tensors that are made of numbers for a device."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        is_made = function in (torch.as_tensor, torch.tensor) and not isinstance(args[0], torch.Tensor)
        self.count += is_made and "device" in (kwargs or {})
        return function(*args, **(kwargs or {}))


def test_a_step_sends_all_of_it_and_is_the_same(card):
    expected = [values(model.train_step(batch())) for model in [pretrainer()] for _ in range(3)]
    model, pinned = pretrainer(), card("cpu")
    logs = [values(model.train_step(batch())) for _ in range(2)]
    pinned.clear()
    with Made() as made:
        logs.append(values(model.train_step(batch())))
    assert logs == expected
    of_batch = [tuple(tensor.shape) for tensor in pinned[:8]]
    assert sorted(of_batch) == [(3,), (3,), (3, 2), (3, 2), (3, 2), (3, 9), (3, 9), (3, 9)]
    assert len(pinned) == 8 + made.count


def test_operations_of_layers_and_updates_do_not_pass_python(card, monkeypatch):
    card("cpu")
    calls, call = [], NumbersSent.__torch_function__
    monkeypatch.setattr(NumbersSent, "__torch_function__", lambda *given: calls.append(1) or call(*given))
    counts = []
    for num_layers in (1, 2):
        model = pretrainer(num_layers=num_layers)
        model.train_step(batch())
        calls.clear()
        model.train_step(batch())
        counts.append(len(calls))
    assert 0 < counts[0] == counts[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a card is needed")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_on_a_card_no_step_waits(jit_compile):
    model = pretrainer(jit_compile)
    for _ in range(2):  # Makes the optimizer's variables, and the programs.
        model.train_step(batch())
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            model.train_step(batch())
    finally:
        torch.cuda.set_sync_debug_mode("default")

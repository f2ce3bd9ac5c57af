"""PyTorch's kernels of attention with dropout, run as they are on a card and in Triton's interpreter elsewhere."""

import math

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.layers import SelfAttention
from tests.attention_oracle import CASES, assert_attention, case, is_kept
from tests.helpers import SHALLOW, numpy, random_inputs, randomise

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch's own", allow_module_level=True)

import torch

pytest.importorskip("triton", reason="Triton is needed: make test-triton")

from keras_bert_zoo.layers import torch_attention as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"float16": 1e-3} if DEVICE == "cuda" else {"float32": 1e-6, "float16": 1e-3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", CASES)
def test_the_kernels_compute_attention_and_its_gradient(sizes, dtype):
    *shape, is_masked, rate = sizes
    qkv, mask, gradient = case(*shape, is_masked)
    tensor = torch.tensor(qkv, dtype=getattr(torch, dtype), device=DEVICE, requires_grad=True)
    # The memory order is reversed, as a user's tensor may have it.
    marks = None if mask is None else kernels.marked(torch.tensor(mask.T, device=DEVICE).T)
    outputs, _, words = kernels._attention(tensor.transpose(1, 3).contiguous().transpose(1, 3), marks, rate)
    outputs.backward(torch.tensor(gradient.T, device=DEVICE).to(outputs).permute(3, 2, 1, 0))
    words = numpy(words).view("uint32")
    kept = is_kept(words[:-1].reshape(shape[0], shape[2], shape[1]), words[-1], rate)
    inputs = numpy(tensor), mask, kept, rate, numpy(torch.tensor(gradient).to(outputs.dtype))
    assert_attention(*inputs, numpy(outputs), numpy(tensor.grad), DTYPES[dtype])


def test_each_call_drops_other_probabilities_and_a_seed_the_same():
    qkv = torch.randn(1, 16, 3, 2, 16, dtype=torch.float16, device=DEVICE)

    def drawn():
        torch.manual_seed(3)
        return [kernels.attention(qkv, None, 0.5).tolist() for _ in range(2)]

    first = drawn()
    assert first[0] != first[1]
    assert drawn() == first


def test_pytorch_knows_the_operation():
    qkv = torch.randn(2, 20, 3, 2, 16, dtype=torch.float16, device=DEVICE, requires_grad=True)
    marks = torch.ones(2, 20, dtype=torch.uint8, device=DEVICE)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(kernels._attention, (qkv, marks, 0.1), test_utils=tests)


def test_a_hash_of_two_words_is_as_good_as_a_draw():
    """Rows, columns, pairs of either and quadruples agree only by chance, as independent draws do."""
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, 2**32, (2, 1024), dtype="uint32")
    for rate in (0.1, 0.5):
        scores = (is_kept(rows, columns, rate) - (1 - rate)) / math.sqrt(rate * (1 - rate))
        assert abs(scores.mean()) * 1024 < 4
        for axis in (0, 1):
            pairs = scores * np.roll(scores, 1, axis)
            quadruples = pairs * np.roll(pairs, 1, 1 - axis)
            for values in (scores.mean(axis), pairs.mean(axis)):
                assert abs(values * 32).max() < 6
                assert abs((values * 32).std() - 1) < 0.1
            assert abs(quadruples.mean()) * 1024 < 4


# --- In layers


@pytest.fixture
def taken(monkeypatch):
    """Make layers take the kernels on a CPU too; return the rates of their calls."""
    rates, original = [], kernels.attention
    monkeypatch.setattr("keras_bert_zoo.layers.fused_attention.on_cpu", lambda tensor: False)
    monkeypatch.setattr(kernels, "takes", lambda qkv: True)
    monkeypatch.setattr(kernels, "attention", lambda *given: rates.append(given[2]) or original(*given))
    return rates


def test_attention_in_training_takes_them_and_keeps_the_mean(taken):
    hidden, mask = np.random.default_rng(0).normal(size=(2, 6, 32)).astype("float32"), np.ones((2, 6), "int32")
    mask[1, 4:] = 0
    layer = SelfAttention(32, 2, dropout=0.3)
    layer.build(hidden.shape)
    randomise(layer)
    expected = numpy(layer(hidden, mask))
    assert not taken
    drawn = np.stack([numpy(layer(hidden, mask, training=True)) for _ in range(60)])
    assert taken == [0.3] * 60
    error = (drawn.mean(0) - expected) / (drawn.std(0) / math.sqrt(60))
    assert np.abs(error).max() < 5


def test_left_to_right_and_other_cards_do_without(taken, monkeypatch):
    hidden = np.ones((2, 6, 32), "float32")
    SelfAttention(32, 2, dropout=0.3, causal=True)(hidden, training=True)
    monkeypatch.setattr(kernels, "takes", lambda qkv: False)
    SelfAttention(32, 2, dropout=0.3)(hidden, training=True)
    assert not taken


def test_the_kernels_are_for_half_precision_on_hopper(monkeypatch):
    class Tensor:
        device, dtype, shape = torch.device("cuda"), torch.bfloat16, (2, 8, 3, 4, 64)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert kernels.takes(Tensor)
    for name, value in {"dtype": torch.float32, "shape": (2, 8, 3, 4, 48), "device": torch.device("cpu")}.items():
        assert not kernels.takes(type("Other", (Tensor,), {name: value}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not kernels.takes(Tensor)


def test_a_compiled_program_has_them(taken, traced_only):
    losses, inputs = [], random_inputs()
    for jit_compile in (True, False):
        keras.utils.set_random_seed(3)
        sizes = {**SHALLOW, "num_layers": 2, "hidden_dim": 32, "pooler": False}
        backbone = kbz.BertBackbone(**sizes, dropout=0.0, attention_dropout=0.3)
        model = randomise(kbz.BertTokenClassifier(backbone, num_classes=3, dropout=0.0))
        model.compile(keras.optimizers.SGD(0.1), jit_compile=jit_compile)
        tags = np.where(inputs["padding_mask"], inputs["token_ids"] % 3, -100)
        losses.append([model.train_on_batch(inputs, tags)[0] for _ in range(3)])
    assert taken
    np.testing.assert_allclose(*losses, rtol=1e-5)

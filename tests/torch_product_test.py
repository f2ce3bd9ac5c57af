"""PyTorch's product with weights: values and gradients with either library, and which library multiplies."""

import importlib.util

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TINY, numpy, random_inputs, randomise

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="Elsewhere products are the backend's.")
RNG = np.random.default_rng(3)
X, KERNEL, BIAS = RNG.normal(size=(3, 5, 7)), RNG.normal(size=(7, 4)), RNG.normal(size=4)
WANTED = RNG.normal(size=(3, 5, 4))


@pytest.fixture(params=[True, False], ids=["onednn", "blas"])
def library(request, monkeypatch, products_of_half_precision):
    """Choose one of the two; the first runs on any machine whose PyTorch has it."""
    from keras_bert_zoo.layers import torch_product

    if request.param and not hasattr(torch_product.torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("This PyTorch has no oneDNN.")
    for name in ("_ONEDNN", "_ONEDNN_IN_FLOAT32"):
        monkeypatch.setattr(torch_product, name, request.param)
    return torch_product


@pytest.fixture
def taken(library, monkeypatch):
    """Return the shapes of the products that oneDNN made."""
    shapes, onednn = [], library._onednn

    def noted(inputs, kernel, bias):
        shapes.append((*inputs.shape, kernel.shape[-1]))
        return onednn(inputs, kernel, bias)

    monkeypatch.setattr(library, "_onednn", noted)
    return shapes


def tensors(torch, *arrays):
    return [torch.tensor(array, dtype=torch.float32, requires_grad=True) for array in arrays]


@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_and_its_gradients_are_numpys(library, transposed):
    torch = library.torch
    x, kernel, bias = tensors(torch, X, KERNEL.T.copy() if transposed else KERNEL, BIAS)
    output = library.product(x, kernel.T if transposed else kernel, bias)
    np.testing.assert_allclose(numpy(output), X @ KERNEL + BIAS, atol=1e-5)
    output.backward(torch.tensor(WANTED, dtype=torch.float32))
    np.testing.assert_allclose(x.grad, WANTED @ KERNEL.T, atol=1e-5)
    of_kernel = np.einsum("bti,bto->io", X, WANTED)
    np.testing.assert_allclose(kernel.grad, of_kernel.T if transposed else of_kernel, atol=1e-5)
    np.testing.assert_allclose(bias.grad, WANTED.sum((0, 1)), atol=1e-5)


@pytest.mark.parametrize("rows", [(0, 3), (2, 0)])
def test_of_no_rows_the_gradients_are_zeros(library, rows):
    torch = library.torch
    x, kernel, bias = tensors(torch, np.zeros((*rows, X.shape[-1])), KERNEL, BIAS)
    library.product(x, kernel, bias).sum().backward()
    assert x.grad.shape == x.shape
    assert not kernel.grad.any()
    assert not bias.grad.any()


def test_its_gradients_have_gradients(library):
    """For |d/dx (x k)·w|² = |w kᵀ|² over all rows the gradient of k is 2 Σ wᵀ (w kᵀ), transposed."""
    torch = library.torch
    x, kernel = tensors(torch, X, KERNEL)
    output = library.product(x, kernel)
    (of_x,) = torch.autograd.grad(output, x, torch.tensor(WANTED, dtype=torch.float32), create_graph=True)
    (of_kernel,) = torch.autograd.grad((of_x**2).sum(), kernel)
    rows = WANTED.reshape(-1, 4)
    np.testing.assert_allclose(of_kernel, 2 * (rows @ KERNEL.T).T @ rows, rtol=1e-5, atol=1e-4)


def test_only_what_needs_a_gradient_gets_one(library, taken):
    torch = library.torch
    x, kernel = tensors(torch, X, KERNEL)
    library.product(x.detach(), kernel).sum().backward()
    np.testing.assert_allclose(kernel.grad, np.repeat(X.sum((0, 1))[:, None], 4, axis=1), atol=1e-5)
    assert len(taken) == (2 if library._ONEDNN_IN_FLOAT32 else 0)


@pytest.mark.parametrize("dtype, products", [("float32", 2 * 4 + 3), ("mixed_bfloat16", 0)])
def test_each_float32_product_of_a_masked_lm_is_onednns(library, taken, dtype, products):
    """Four per block, one each for pooler, head and logits. PyTorch gives bfloat16 to oneDNN by itself."""
    model = kbz.BertMaskedLM(kbz.BertBackbone(**TINY, dtype=dtype))
    ids = np.ones((2, 6), "int32")
    model.predict({"token_ids": ids, "segment_ids": ids, "padding_mask": ids, "mask_positions": ids[:, :2]}, verbose=0)
    assert len(taken) == (products if library._ONEDNN_IN_FLOAT32 else 0)


def test_under_autocast_and_in_a_trace_pytorch_chooses(library, taken):
    torch = library.torch
    x, kernel = tensors(torch, X, KERNEL)
    with torch.autocast("cpu", torch.bfloat16):
        assert library.product(x, kernel).dtype == torch.bfloat16
    # PyTorch's own check would call the function once more, without a trace.
    traced = torch.jit.trace(library.product, (x.detach(), kernel.detach()), check_trace=False)
    assert not taken
    np.testing.assert_allclose(traced(x, kernel).detach(), X @ KERNEL, atol=1e-5)
    assert "mkldnn" not in str(traced.graph)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_cpu_without_products_of_half_precision_takes_float32s(dtype, dropout, monkeypatch):
    """All products are: of layers, of attention by a kernel and without one, and of gradients."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from keras_bert_zoo.layers import torch_product

    products = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            if any(name in str(operation) for name in ("mm", "attention", "linear", "matmul")):
                given = [a for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
                if not given[0].is_meta:  # Keras has looked up shapes.
                    products.append((str(operation), {tensor.dtype for tensor in given}))
            return operation(*arguments, **(options or {}))

    monkeypatch.setattr(torch_product, "_WITHOUT_PRODUCTS", {torch.bfloat16, torch.float16})
    monkeypatch.setattr(torch_product, "_PACKS", False)
    logits = []
    for policy in (dtype, "float32"):
        sizes = {**TINY, "dropout": dropout, "attention_dropout": dropout}
        model = randomise(kbz.BertTextClassifier(kbz.BertBackbone(**sizes, dtype=policy), num_classes=3))
        model.compile(kbz.AdamW(1e-3))
        inputs = random_inputs(4, 9)
        products.clear()
        with Noted():
            logits.append(model.predict(inputs, verbose=0))
            model.train_on_batch(inputs, np.array([0, 1, 2, 0]))
            model.backbone.extractor(attention_scores=True)(inputs)
        assert not [each for each in products if each[1] != {torch.float32}]
        assert len(products) > 50
    np.testing.assert_allclose(*logits, atol=0.05)


def test_mkl_multiplies_on_intels_processors(monkeypatch):
    """It is faster there in float32, and slower elsewhere."""
    from keras_bert_zoo import on_cpu
    from keras_bert_zoo.layers import torch_product

    torch, chosen = torch_product.torch, {}
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        pytest.skip("This PyTorch has one of the two alone.")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for maker in ("GenuineIntel", "AuthenticAMD"):
        monkeypatch.setattr(on_cpu, "_description", lambda maker=maker: f"vendor_id: {maker}")
        found = importlib.util.find_spec(torch_product.__name__)
        module = importlib.util.module_from_spec(found)  # Beside the one that the package uses.
        found.loader.exec_module(module)
        chosen[maker] = module._ONEDNN_IN_FLOAT32
    assert chosen == {"GenuineIntel": False, "AuthenticAMD": True}

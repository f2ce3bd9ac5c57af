"""PyTorch's matmul with weights; imported on that backend only."""

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from keras_bert_zoo.on_cpu import has_amx, is_intel

_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
# MKL takes its fast paths on Intel's processors only.
_ONEDNN_IN_FLOAT32 = _ONEDNN and not (torch.backends.mkl.is_available() and is_intel())
HAS_AMX = has_amx()  # Read here, because PyTorch's compiler cannot trace the reading.
_PACKS = hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and torch.ops.mkldnn._is_mkldnn_bf16_supported()
# What oneDNN does not multiply on this processor: PyTorch's own products then take over 20 times as long as float32's.
_WITHOUT_PRODUCTS = {
    dtype
    for dtype, name in ((torch.bfloat16, "_is_mkldnn_bf16_supported"), (torch.float16, "_is_mkldnn_fp16_supported"))
    if not getattr(torch.ops.mkldnn, name, lambda: True)()
}


def product(inputs: Any, kernel: Any, bias: Any = None) -> Any:
    """Return `inputs @ kernel + bias` of one dtype: `[..., m]`, `[m, n]` (as it is or from `pack`) and `[n]`.

    In float32 on a CPU with AVX-512 that is not Intel's this uses oneDNN, through the operation that PyTorch's compiler
    emits there. BLAS, which PyTorch uses in eager mode, took 2.2 times as long on an AMD processor. On an Intel one it
    took 0.5 to 0.95 times as long. Where a CPU has no products of half precision they are float32's, rounded once.
    Otherwise PyTorch chooses.
    """
    if widens(inputs):
        wide = (None if tensor is None else tensor.float() for tensor in (inputs, kernel, bias))
        return product(*wide).to(inputs.dtype)
    if kernel.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(inputs, kernel, bias, "none", [], "")
    if _ONEDNN_IN_FLOAT32 and inputs.dtype == torch.float32 and is_for_onednn(inputs):
        return _Product.apply(inputs, kernel, bias) if torch.is_grad_enabled() else _onednn(inputs, kernel, bias)
    return torch.nn.functional.linear(inputs, kernel.T, bias)


def widens(inputs: Any) -> bool:
    """Whether products of `inputs` are faster in float32."""
    return inputs.dtype in _WITHOUT_PRODUCTS and is_eager_on_cpu(inputs)


def packs(inputs: Any, dtype: str) -> bool:
    """Whether matmuls with `inputs` in `dtype` are faster with a kernel from `pack`, outside training.

    They take a tenth less time in bfloat16, and hardly less in float32.
    """
    return _PACKS and dtype == "bfloat16" and inputs.dtype == torch.bfloat16 and is_for_onednn(inputs)


def pack(kernel: Any) -> Any:
    """Return a kernel `[m, n]` in the layout that oneDNN's matmul reads."""
    return torch.ops.mkldnn._reorder_linear_weight(kernel.T.contiguous())


def is_traced() -> bool:
    """Whether PyTorch is tracing a graph."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or get_proxy_mode() is not None


def has_onednn() -> bool:
    """Whether oneDNN is there, allowed, and made for this processor."""
    return bool(_ONEDNN and torch.backends.mkldnn.enabled)


def is_for_onednn(inputs: Any) -> bool:
    return has_onednn() and is_eager_on_cpu(inputs)


def is_eager_on_cpu(inputs: Any) -> bool:
    """Whether operations on `inputs` run as they are called, on a CPU, as their dtype says."""
    return (
        inputs.device.type == "cpu"
        and type(inputs) is torch.Tensor  # Subclasses stand for traced or distributed tensors.
        and not torch._C._are_functorch_transforms_active()  # `torch.func` does not know oneDNN's operation.
        and not (is_traced() or torch.is_autocast_enabled("cpu"))
        and inputs.numel() > 0  # oneDNN has no matmul over zero rows, as in the kernel's gradient.
    )


def _onednn(inputs: Any, kernel: Any, bias: Any) -> Any:
    return torch.ops.mkldnn._linear_pointwise(inputs, kernel.T, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """oneDNN's matmul, whose gradients are matmuls that themselves have gradients."""

    @staticmethod
    def forward(inputs: Any, kernel: Any, bias: Any) -> Any:
        return _onednn(inputs, kernel, bias)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        context.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        inputs, kernel = context.saved_tensors
        wanted = context.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            product(gradient, kernel.T) if wanted[0] else None,
            product(inputs.flatten(0, -2).T, rows) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )

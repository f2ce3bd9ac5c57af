"""PyTorch's product with an int8 kernel on a CPU, by oneDNN or in float32; imported on that backend only.

Keras 3.15 takes PyTorch's product of int8 on CUDA alone. On a CPU it multiplies int32 without a library, which takes
ten times as long.
"""

from functools import cache
from typing import Any

import torch

from keras_bert_zoo.layers.int8_sums import sums_in_float32
from keras_bert_zoo.layers.torch_product import has_onednn, is_eager_on_cpu


def int8_product(inputs: Any, kernel: Any, scale: Any, bias: Any, epsilon: float) -> Any:
    """Return what Keras' Dense computes in int8, in the same operations, without a gradient.

    Args:
        inputs: `[..., m]`, of which each row is rounded to int8 by its largest value.
        kernel: int8 `[m, n]`.
        scale: `[n]`, by which each column of the kernel was multiplied.
        bias: `[n]` or None.
        epsilon: Added to the largest value.
    """
    rows = inputs.flatten(0, -2).to(torch.float32)
    scales = torch.div(127.0, rows.abs().amax(-1, keepdim=True) + epsilon)
    summed = sums((rows * scales).round_(), kernel)
    divisor = scales * scale
    outputs = torch.div(summed, divisor, out=divisor)  # In place: memory for as much again would take a third longer.
    if bias is not None:
        outputs += bias
    return outputs.view(*inputs.shape[:-1], -1).to(inputs.dtype)


def takes(inputs: Any) -> bool:
    """Whether `int8_product` can be taken: on a CPU, outside training."""
    return not torch.is_grad_enabled() and is_eager_on_cpu(inputs)


def sums(whole: Any, kernel: Any) -> Any:
    """Return `whole @ kernel`, exactly, of float32 `[rows, m]` that are whole, -128 to 127, and int8 `[m, n]`."""
    return torch._int_mm(whole.to(torch.int8), kernel) if _has_int8() else sums_in_float32(whole, kernel)


def _has_int8() -> bool:
    """Whether oneDNN multiplies int8 fast and exactly. With AVX2 alone it takes 40 times as long as float32."""
    return has_onednn() and hasattr(torch, "_int_mm") and _is_exact()


@cache
def _is_exact() -> bool:
    """Whether sums of extremes are right: processors without int8 products add pairs of them in int16."""
    largest = torch.full((64, 64), 127, dtype=torch.int8, device="cpu")
    return bool((torch._int_mm(largest, largest) == 64 * 127**2).all())

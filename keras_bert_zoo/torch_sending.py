"""Copies to a GPU from pinned memory; imported on PyTorch only."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np
import torch
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

GPU = "cuda"


def is_gpu(device: Any) -> bool:
    return torch.device(device).type == GPU


def is_fake(tensor: Any) -> bool:
    """Whether PyTorch is tracing with this tensor. It then has no memory, and numbers belong to the graph."""
    return isinstance(tensor, FakeTensor)


def sent_to(device: Any, value: Any) -> Any:
    """Return a host array or tensor as a tensor on the GPU `device`, and anything else unchanged."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSUT":
        with keras.device("cpu"):
            value = keras.ops.convert_to_tensor(value)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not is_gpu(device):
        return value
    return _pinned(value).to(device, non_blocking=True)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a pinned copy, as the caller may change the original. PyTorch reuses its memory after the transfer."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)


class NumbersSent(TorchFunctionMode):
    """Mode in which tensors made of numbers are created on the host and copied to the GPU."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device") or "cpu"
        is_made = function in (torch.as_tensor, torch.tensor) and args and not isinstance(args[0], torch.Tensor)
        if is_made and is_gpu(device) and not kwargs.get("requires_grad"):
            return sent_to(device, function(*args, **{**kwargs, "device": "cpu"}))
        return function(*args, **kwargs)


def numbers_left_alone() -> AbstractContextManager[Any]:
    """Return a context that suspends `NumbersSent`, for a part with many operations."""
    return _pop_mode_temporarily() if isinstance(_get_current_function_mode(), NumbersSent) else nullcontext()

"""From memory that is pinned; imported on PyTorch alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CARD = "cuda"


def is_card(device: Any) -> bool:
    return torch.device(device).type == CARD


def sent_to(device: Any, value: Any) -> Any:
    """A tensor of the host on the card `device`; anything else as it is."""
    is_here = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return value.pin_memory().to(device, non_blocking=True) if is_here and is_card(device) else value


class NumbersSent(TorchFunctionMode):
    """Within, tensors that are made of numbers are made on the host, and sent."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device") or "cpu"
        if function in (torch.as_tensor, torch.tensor) and not isinstance(args[0], torch.Tensor) and is_card(device):
            return sent_to(device, function(*args, **{**kwargs, "device": "cpu"}))
        return function(*args, **kwargs)

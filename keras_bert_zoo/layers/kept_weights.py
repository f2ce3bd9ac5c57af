"""Weights in the compute dtype, cast once for a pass in which none of them changes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def weights_kept() -> Iterator[None]:
    """Within, no weight changes: on PyTorch a Dense casts its own at its first batch, not at each.

    That takes a tenth of the prediction of short texts in bfloat16. The copies go when it ends.
    """
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def kept(layer: Any, read: Callable[[], Any]) -> Any:
    """What `read` gives, for `layer` read once within `weights_kept`."""
    weights = _kept.get()
    if weights is None:
        return read()
    if layer not in weights:
        weights[layer] = read()
    return weights[layer]

"""Copy to a GPU without blocking the host on PyTorch. Elsewhere a step is one program, and this does nothing.

Whenever PyTorch copies an array or a number, the host waits until the GPU has finished all its work, and then the GPU
waits for the host. A copy from pinned memory is queued with the GPU's other work.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras


def sends_to_gpu(tensor: Any) -> bool:
    """Whether the other operands of this tensor are to be copied to a GPU."""
    if keras.backend.backend() != "torch" or not hasattr(tensor, "device"):
        return False
    from keras_bert_zoo.torch_sending import is_fake, is_gpu

    return is_gpu(tensor.device) and not is_fake(tensor)


def sent(data: Any, beside: Any) -> Any:
    """Copy a structure's host arrays and tensors to the GPU that holds the tensor `beside`."""
    if not sends_to_gpu(beside):
        return data
    from keras_bert_zoo.torch_sending import sent_to

    return keras.tree.map_structure(lambda value: sent_to(beside.device, value), data)


def numbers_sent(beside: Any) -> AbstractContextManager[Any]:
    """Return a context that also copies numbers and lists in this way.

    These are the ones that Keras converts to tensors, such as a mean's count. PyTorch then calls Python at each
    operation, so use it around few operations.
    """
    if not sends_to_gpu(beside):
        return nullcontext()
    from keras_bert_zoo.torch_sending import NumbersSent

    return NumbersSent()

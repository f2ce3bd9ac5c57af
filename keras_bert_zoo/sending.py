"""What goes to a card without holding up the host, on PyTorch; elsewhere a step is one program, and nothing is done.

PyTorch waits, at each array or number that it sends, until the card has done all that it was given, and then the card
waits for what the host does next. From memory that is pinned it sends in the order of the card's other work.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras


def sent(data: Any, beside: Any) -> Any:
    """A structure with its tensors on the card where the tensor `beside` is; what is on one, or no tensor, as it is."""
    if not _on_card(beside):
        return data
    from keras_bert_zoo.torch_sending import sent_to

    return keras.tree.map_structure(lambda value: sent_to(beside.device, value), data)


def numbers_sent(beside: Any) -> AbstractContextManager[Any]:
    """Within, so go numbers and lists that Keras makes tensors of, such as how many examples a mean is of.

    PyTorch calls Python at each operation then, so this goes around few of them.
    """
    if not _on_card(beside):
        return nullcontext()
    from keras_bert_zoo.torch_sending import NumbersSent

    return NumbersSent()


def numbers_left_alone(beside: Any) -> AbstractContextManager[Any]:
    """Within `numbers_sent`, a part that is out of it, for its many operations."""
    if not _on_card(beside):
        return nullcontext()
    from torch._C import DisableTorchFunction

    return DisableTorchFunction()


def _on_card(tensor: Any) -> bool:
    if keras.backend.backend() != "torch" or not hasattr(tensor, "device"):
        return False
    from keras_bert_zoo.torch_sending import is_card

    return is_card(tensor.device)

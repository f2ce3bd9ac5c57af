"""What goes to a card without holding up the host, on PyTorch; elsewhere a step is one program, and nothing is done.

PyTorch waits, at each array or number that it sends, until the card has done all that it was given, and then the card
waits for what the host does next. From memory that is pinned it sends in the order of the card's other work.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras


def sends_to_card(tensor: Any) -> bool:
    """Whether what is computed with this tensor is to be sent to a card."""
    if keras.backend.backend() != "torch" or not hasattr(tensor, "device"):
        return False
    from keras_bert_zoo.torch_sending import is_card, is_shown

    return is_card(tensor.device) and not is_shown(tensor)


def sent(data: Any, beside: Any) -> Any:
    """A structure with its arrays and tensors of the host on the card where the tensor `beside` is."""
    if not sends_to_card(beside):
        return data
    from keras_bert_zoo.torch_sending import sent_to

    return keras.tree.map_structure(lambda value: sent_to(beside.device, value), data)


def numbers_sent(beside: Any) -> AbstractContextManager[Any]:
    """Within, so go numbers and lists that Keras makes tensors of, such as how many examples a mean is of.

    PyTorch calls Python at each operation then, so this goes around few of them.
    """
    if not sends_to_card(beside):
        return nullcontext()
    from keras_bert_zoo.torch_sending import NumbersSent

    return NumbersSent()

"""FLOPs of the products that a contender computes, for its share of what the device can do.

`training_flops` counts a model alike for everybody, as MFU is defined. But our last block computes only what its heads
read, and transformers' masked-LM head every position.
"""

from typing import Any

from keras_bert_zoo.training.speed import training_flops


def computed_flops(
    architecture: dict[str, Any], length: float, ours: bool, predictions: int = 0, folded: bool = False
) -> float:
    """Return the floating-point operations of an example's training step; a third of them are the forward pass'.

    Args:
        architecture: `BertBackbone.architecture`.
        length: Number of tokens, without padding.
        ours: Whether the contender is keras_bert_zoo.
        predictions: Number of masked tokens; 0 for a classifier, which reads `[CLS]` alone.
        folded: Whether our last block multiplies the key and value kernels by one row a text (`SelfAttention`).
    """
    if not ours:
        return training_flops(architecture, length, length if predictions else 0)
    blocks = training_flops({**architecture, "num_layers": architecture["num_layers"] - 1}, length, predictions)
    width, inner, read = architecture["hidden_dim"], architecture["intermediate_dim"], 1 + predictions
    if folded:
        token, output = 2 * width * architecture["num_heads"], 4 * width**2 + 2 * width * inner
    else:
        token, output = 3 * width**2 + 2 * width * read, width**2 + 2 * width * inner
    return blocks + 3 * 2 * (length * token + read * output)

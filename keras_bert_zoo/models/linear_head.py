"""The linear layer that most tasks end with."""

import keras

from keras_bert_zoo.layers.initializer import Normal
from keras_bert_zoo.models.backbone import BertBackbone


def linear_head(backbone: BertBackbone, units: int, name: str) -> keras.layers.Dense:
    """Create a linear layer, float32 at any backbone precision: a loss over half-precision logits loses digits."""
    initializer = Normal(stddev=backbone.architecture["initializer_range"])
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name=name)

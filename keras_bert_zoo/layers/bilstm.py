"""A recurrent layer on top of the encoder (Devlin et al. 2019, sections 5.1 and 5.3)."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.layers.passes import makes_outputs_alone, trains_here


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BiLSTM(keras.layers.Layer):
    """A stack of Keras' bidirectional LSTMs that ignores padding.

    With TensorFlow on a GPU, `fit`, `evaluate` and `predict` use cuDNN, which takes padding only after a text's tokens.

    Args:
        units: Width of each direction.
        num_layers: Number of bidirectional LSTMs.

    Call arguments:
        hidden: `[batch, length, width]`.
        padding_mask: int or bool `[batch, length]`, nonzero at real tokens. Keras' implicit mask, such as
            `Embedding(mask_zero=True)`'s, is not used.

    Returns:
        `[batch, length, 2 * units]`: the left-to-right outputs, then the right-to-left ones; zeros at padding.
    """

    def __init__(self, units: int, num_layers: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive_int(units=units, num_layers=num_layers)
        self.units = units
        self.num_layers = num_layers
        policy = self.dtype_policy
        self.lstms = [
            keras.layers.Bidirectional(
                keras.layers.LSTM(units, return_sequences=True, dtype=policy, name="lstm"),
                dtype=policy,
                name=f"layer_{i}",
            )
            for i in range(num_layers)
        ]

    def build(self, hidden_shape: Any, padding_mask_shape: Any = None) -> None:
        for lstm in self.lstms:
            lstm.build(hidden_shape)
            hidden_shape = (*hidden_shape[:-1], 2 * self.units)

    def call(self, hidden: Any, padding_mask: Any, training: bool | None = None) -> Any:
        mask = ops.cast(padding_mask, "bool")
        if keras.backend.backend() == "tensorflow":
            # A program that is saved would need a GPU with it, and XLA does not know it.
            with_cudnn = "auto" if trains_here() or makes_outputs_alone() else False
            for lstm in self.lstms:
                lstm.forward_layer.use_cudnn = lstm.backward_layer.use_cudnn = with_cudnn
        for lstm in self.lstms:
            hidden = lstm(hidden, mask=mask, training=training)
        # The outputs of Keras' LSTM at padding depend on the kernel that runs.
        return hidden * ops.cast(mask, hidden.dtype)[..., None]

    def compute_output_shape(self, hidden_shape: Any, padding_mask_shape: Any = None) -> tuple[int | None, ...]:
        return (*hidden_shape[:-1], 2 * self.units)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units, "num_layers": self.num_layers}

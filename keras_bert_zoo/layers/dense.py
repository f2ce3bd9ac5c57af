"""A Dense layer in one operation where the backend does not find it by itself."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.parts import plain_part


@plain_part
class Dense(keras.layers.Dense):
    """Keras' Dense, on PyTorch with the bias as part of the product: a pass over the outputs less."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if keras.backend.backend() == "torch":
            inputs, kernel = ops.convert_to_tensor(inputs), ops.convert_to_tensor(self.kernel)
            if inputs.dtype == kernel.dtype:  # Else Keras' product finds a type for both.
                import torch

                bias = None if self.bias is None else ops.convert_to_tensor(self.bias)
                return self.activation(torch.nn.functional.linear(inputs, kernel.T, bias))
        return super().call(inputs, training=training)

    def quantize(self, mode: str | None = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras leaves out what is not quite a Dense.

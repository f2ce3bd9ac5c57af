"""Rematerialisation: recompute a layer's activations for the gradient instead of keeping them (Chen et al. 2016)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.layers.parts import is_recomputed


class RecomputedLayer(keras.layers.Layer):
    """A layer that trains within `keras.RematScope("list_of_layers", ...)`, with the same dropout when recomputed.

    Keras passes flags such as `training` to functions of JAX and TensorFlow that accept only tensors, and its dropout
    changes a state: JAX rejects that, and TensorFlow drops other units when it recomputes the layer. So the recomputed
    function depends only on the layer's inputs and variables, including dropout's state.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Keras' other modes also wrap the inner layers, in functions that do not accept this layer's arguments.
        if self._remat_mode and self._remat_mode.mode not in ("list_of_layers", None):
            raise ValueError(
                "`keras.RematScope` around a backbone must have the mode 'list_of_layers', with `layer_names`. "
                f"Received: mode={self._remat_mode.mode!r}"
            )

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        if not is_recomputed(self):  # Keras checks later; the code below takes time at each batch on PyTorch.
            return layer_call
        variables = self.variables
        weights = {id(weight) for weight in self.weights}  # Never written, frozen or not: autocast reads them rounded.
        drawn = [variable for variable in variables if id(variable) not in weights]
        named = {name: value for name, value in kwargs.items() if ops.is_tensor(value)}

        def pure(values: list[Any], named: dict[str, Any], *tensors: Any) -> tuple[Any, list[Any]]:
            with keras.StatelessScope(zip(variables, values, strict=True)) as scope:
                outputs = layer_call(*tensors, **{**kwargs, **named})
            return outputs, [scope.get_current_value(variable) for variable in drawn]

        recomputed = super().rematerialized_call(pure)

        def call(*tensors: Any, **_: Any) -> Any:
            outputs, states = recomputed([_read(variable) for variable in variables], named, *tensors)
            for variable, state in zip(drawn, states, strict=True):
                variable.assign(state)
            return outputs

        return call


def _read(variable: Any) -> Any:
    """Return the value as a tensor: Keras passes TensorFlow variables, whose gradient an eager step counts twice."""
    if keras.backend.backend() != "tensorflow":
        return ops.convert_to_tensor(variable)
    import tensorflow as tf

    return tf.convert_to_tensor(variable.value)

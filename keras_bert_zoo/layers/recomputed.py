"""Rematerialisation: a layer's inside computed again for the gradient, in place of keeping it (Chen et al. 2016)."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops


class RecomputedLayer(keras.layers.Layer):
    """A layer that trains within `keras.RematScope`, with the same dropout when it is computed again.

    Keras hands flags such as `training` on to functions of JAX and TensorFlow that take tensors only, and its dropout
    draws from a state: JAX refuses that, and TensorFlow drops other units when it computes the layer again. So what is
    computed again is a function of the layer's inputs and variables alone, dropout's state among them.
    """

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        variables = self.variables
        drawn = [variable for variable in variables if not variable.trainable]

        def pure(values: list[Any], *tensors: Any) -> tuple[Any, list[Any]]:
            with keras.StatelessScope(zip(variables, values, strict=True)) as scope:
                outputs = layer_call(*tensors, **kwargs)
            return outputs, [scope.get_current_value(variable) for variable in drawn]

        recomputed = super().rematerialized_call(pure)
        if recomputed is pure:
            return layer_call

        def call(*tensors: Any, **_: Any) -> Any:
            outputs, states = recomputed([ops.convert_to_tensor(variable) for variable in variables], *tensors)
            for variable, state in zip(drawn, states, strict=True):
                variable.assign(state)
            return outputs

        return call

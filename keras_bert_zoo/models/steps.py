"""Steps that are run where they are drawn, and have no gradient."""

from typing import Any

from keras_bert_zoo.layers.passes import outputs_alone


class PredictsByItself:
    """For a `keras.Model`: the steps of `evaluate` and `predict` may use what this machine alone has."""

    jit_compile: Any

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        with outputs_alone(self.jit_compile):
            return super().test_step(*args, **kwargs)  # type: ignore[misc]

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        with outputs_alone(self.jit_compile):
            return super().predict_step(*args, **kwargs)  # type: ignore[misc]

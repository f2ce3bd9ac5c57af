"""Steps that run in the process that traces them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras

from keras_bert_zoo.layers.passes import WalksOnce, begin_run, step_of_this_process


class RunsItsSteps(WalksOnce):
    """Mixin for a `keras.Model` whose `fit`, `evaluate` and `predict` may use operations only this machine has."""

    jit_compile: Any

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        with step_of_this_process("training", self.jit_compile), self._once_there(args, "optimizer"):
            return super().train_step(*args, **kwargs)  # type: ignore[misc]

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        with step_of_this_process("outputs", self.jit_compile), self._once_there(args):
            return super().test_step(*args, **kwargs)  # type: ignore[misc]

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        with step_of_this_process("outputs", self.jit_compile):
            return super().predict_step(*args, **kwargs)  # type: ignore[misc]

    def _once_there(self, data: Any, *changed: str) -> AbstractContextManager[Any]:
        """Context in which TensorFlow computes nothing before the batch has arrived.

        A stream of unknown length ends with a step without a batch. Operations that do not depend on the batch would
        still run: the update count, weight decay, the number of rows if it is fixed.
        """
        if keras.backend.backend() != "tensorflow":
            return nullcontext()
        parts = [getattr(self, name) for name in ("_compile_metrics", "_compile_loss", *changed)]
        if not all(part.built for part in parts if part is not None):
            return nullcontext()  # Variables created in a step must not depend on it; `fit` created them before.
        import tensorflow as tf

        return tf.control_dependencies([part for part in tf.nest.flatten(data) if part is not None])

    def _should_torch_compile(self) -> bool:
        return False  # Keras would compile the step's Python code: see `CompilesSteps`.

    def make_train_function(self, force: bool = False) -> Any:
        begin_run()
        return super().make_train_function(force or self._reads_others("train_function"))  # type: ignore[misc]

    def make_test_function(self, force: bool = False) -> Any:
        return self._made("test_function", super().make_test_function, force)  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> Any:
        return self._made("predict_function", super().make_predict_function, force)  # type: ignore[misc]

    def _made(self, name: str, make: Callable[[bool], Any], force: bool) -> Any:
        begin_run()
        if keras.backend.backend() != "tensorflow":
            return make(force)
        from keras_bert_zoo.layers.tensorflow_copies import with_weights_of_now

        before = getattr(self, name)
        make(force or self._reads_others(name))
        if getattr(self, name) is not before:
            setattr(self, name, with_weights_of_now(self, getattr(self, name)))
        return getattr(self, name)

    def _reads_others(self, name: str) -> bool:
        """Whether a function would read other weights than when this was last asked of it.

        TensorFlow's programs keep reading those that they were traced with. Keras' `quantize` causes a new trace, but
        not if the backbone within a model is quantized or gets LoRA factors.
        """
        layers, place = self._flatten_layers(), f"_{name}_reads"
        # As text, which Keras does not track.
        now = str([(layer.dtype_policy.name, getattr(layer, "lora_enabled", False)) for layer in layers])
        before = getattr(self, place, now)
        setattr(self, place, now)
        return bool(before != now)

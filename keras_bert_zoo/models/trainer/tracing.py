"""Steps that TensorFlow traces once, where Keras' trainer causes two traces, or for each shape (Keras 3.15)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from types import SimpleNamespace
from typing import Any

import keras

from keras_bert_zoo.training.distribution import on_tpu


class TracesOnce:
    """Mixin for a `keras.Model` that creates the variables of optimizer, metrics and losses before a step is traced.

    Without a strategy Keras creates them in the first trace. TensorFlow then traces the step again, which takes as long
    as the first time.

    On a TPU it traces each shape: given a second one, Keras' functions would take any, which compiles dynamic shapes.
    """

    optimizer: Any
    run_eagerly: bool
    trainable_variables: Any
    _distribute_strategy: Any
    _symbolic_build: Any

    def make_train_function(self, force: bool = False) -> Any:
        # There is no optimizer if a user's own `train_step` brings others.
        if keras.backend.backend() == "tensorflow" and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)  # type: ignore[misc]

    def _make_function(self, *args: Any, **kwargs: Any) -> Any:
        with self._traces_shapes():
            return super()._make_function(*args, **kwargs)  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> Any:
        with self._traces_shapes():
            return super().make_predict_function(force)  # type: ignore[misc]

    def _traces_shapes(self: Any) -> AbstractContextManager[None]:
        return _without_reduced_retracing() if on_tpu(self) else nullcontext()

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]
        specs = getattr(getattr(iterator, "_distributed_dataset", None), "element_spec", None)
        if self._distribute_strategy is not None or not all(map(_is_known, keras.tree.flatten(specs))):
            return
        if self.run_eagerly:  # Nothing is traced, and losses and metrics may look at values.
            return
        # `evaluate` also calls this. It needs no optimizer state, and there may be no optimizer.
        optimizer = self.optimizer or SimpleNamespace(built=True)
        built, optimizer.built = optimizer.built, True
        try:
            self._symbolic_build(data_batch=keras.tree.map_structure(_symbol, specs))
        finally:
            optimizer.built = built


_PATCHING = RLock()  # Threads may predict with models of their own.


@contextmanager
def _without_reduced_retracing() -> Iterator[None]:
    """Context in which `tf.function` makes functions that trace each shape; Keras has no argument for it."""
    import tensorflow as tf

    with _PATCHING:
        function = tf.function
        tf.function = lambda *args, **options: function(*args, **{**options, "reduce_retracing": False})
        try:
            yield
        finally:
            tf.function = function


def _is_known(spec: Any) -> bool:
    import tensorflow as tf

    return isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None


def _symbol(spec: Any) -> keras.KerasTensor:
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)

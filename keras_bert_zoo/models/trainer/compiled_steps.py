"""`jit_compile=True` on PyTorch: each step as one program."""

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.layers.passes import begin_run, read_once, torch_compiles


class CompilesSteps:
    """Mixin for a `keras.Model` that compiles each step as one program, except the optimizer.

    The program computes the forward pass, losses, metrics and the gradient of the loss. Run one by one, the hundreds of
    small operations of losses and metrics keep the host busy for longer than an H200 needs for the matrix products. If
    a step calls any class or function but those of Keras, PyTorch, Python and ours, only the backbone is compiled: a
    traced graph would freeze Python values, such as a number of examples or a flag, and omit custom gradients.
    """

    backbone: Any
    optimizer: Any
    _loss_tracker: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)  # type: ignore[misc]
        if keras.backend.backend() == "torch":
            from keras_bert_zoo.layers.torch_compiled import forget_programs

            forget_programs(self, self.backbone)
            begin_run()

    # On JAX, steps take the state before the data.

    def train_step(self, *args: Any) -> Any:
        if not torch_compiles() or self.optimizer is None:
            return super().train_step(*args)  # type: ignore[misc]
        weights = read_once(self, "trained", lambda: self.trainable_weights)  # type: ignore[attr-defined]
        outputs = self._of_program("the step of training", self._loss_and_logs, *args) if weights else None
        if outputs is None:
            return super().train_step(*args)  # type: ignore[misc]
        import torch

        loss, logs = outputs
        values = read_once(self, "trained values", lambda: [weight.value for weight in weights])
        for value in values:
            value.grad = None
        self.optimizer.scale_loss(loss).backward()
        with torch.no_grad():
            self.optimizer.apply([value.grad for value in values], weights)
        return logs

    def test_step(self, *args: Any) -> Any:
        evaluate = super().test_step  # type: ignore[misc]
        logs = self._of_program("the step of evaluation", evaluate, *args)
        return evaluate(*args) if logs is None else logs

    def predict_step(self, *args: Any) -> Any:
        predict = super().predict_step  # type: ignore[misc]
        outputs = self._of_program("the step of prediction", predict, *args, has_metrics=False)
        return predict(*args) if outputs is None else outputs

    def _loss_and_logs(self, data: Any) -> Any:
        """Compute what Keras' step does (keras/src/backend/torch/trainer.py), which updates weights before metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=True)  # type: ignore[operator]
        loss = self._compute_loss(x, y, y_pred, sample_weight, training=True)  # type: ignore[attr-defined]
        self._loss_tracker.update_state(loss.detach(), sample_weight=keras.tree.flatten(x)[0].shape[0])
        y_pred = keras.tree.map_structure(lambda output: output.detach(), y_pred)
        return loss, self.compute_metrics(x, y, y_pred, sample_weight)  # type: ignore[attr-defined]

    def _of_program(self, name: str, compute: Any, *args: Any, has_metrics: bool = True) -> Any:
        """Return `compute(*args)`, or `None` if there is no program for it."""
        if not torch_compiles() or (has_metrics and not self._metrics_are_built()):
            return None
        if not read_once(self, "is known", lambda: all(map(_is_known, self._parts()))):
            return None
        from keras_bert_zoo.layers.torch_compiled import NotTracedError, outputs_of_program

        x, y, sample_weight = keras.tree.map_structure(_as_tensor, keras.utils.unpack_x_y_sample_weight(args[0]))
        metrics = (lambda: self.metrics_variables) if has_metrics else list  # type: ignore[attr-defined]
        try:
            return outputs_of_program(self, name, lambda *given: compute(given), x, y, sample_weight, metrics=metrics)
        except NotTracedError:
            return None

    def _metrics_are_built(self) -> bool:
        parts = (self._compile_loss, self._compile_metrics)  # type: ignore[attr-defined]
        return all(part is None or part.built for part in parts)

    def _parts(self) -> Iterator[Any]:
        """Yield everything that a step calls."""
        yield from type(self).__mro__
        for layer in self._flatten_layers():  # type: ignore[attr-defined]
            yield from type(layer).__mro__
            yield getattr(layer, "activation", None)
        yield from (weight.regularizer for weight in self.trainable_weights)  # type: ignore[attr-defined]
        yield from keras.tree.flatten(getattr(self._compile_loss, "_user_loss", None))  # type: ignore[attr-defined]
        for name in ("_user_metrics", "_user_weighted_metrics"):
            yield from keras.tree.flatten(getattr(self._compile_metrics, name, None))  # type: ignore[attr-defined]


_KNOWN = ("keras", "keras_bert_zoo", "torch", "builtins")
_CALLING_OTHERS = (keras.layers.Lambda, keras.layers.TorchModuleWrapper)


def _is_known(part: Any) -> bool:
    """Whether a class, a function or an object is from one of these packages, and calls nothing else."""
    if isinstance(part, MethodType):  # Python's own class, but anybody's function.
        return _is_known(part.__func__) and _is_known(part.__self__)
    inner = [getattr(part, name) for name in ("fn", "_fn") if getattr(part, name, None) is not None]
    module = part.__module__ if isinstance(part, (type, FunctionType)) else type(part).__module__
    return module.partition(".")[0] in _KNOWN and part not in _CALLING_OTHERS and all(map(_is_known, inner))


def _as_tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(value) if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" else value

"""Steps that do not make the GPU wait for the host."""

from functools import partial
from typing import Any

import keras

from keras_bert_zoo.models.trainer.streaming import MappedBatches
from keras_bert_zoo.sending import numbers_sent, sends_to_gpu, sent


class SendsAhead:
    """Mixin for a `keras.Model` that uses `sending` to send batches, and numbers in losses and metrics, to the GPU."""

    parameters: Any
    _loss_tracker: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)  # type: ignore[misc]
        self._loss_tracker.__class__ = _LossMean  # Replacing the object would add a second metric.

    # --- Batches: those of a PyDataset are sent before the step, all others within it.

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "validation_data" in kwargs:
            kwargs["validation_data"] = self._sending(kwargs["validation_data"])
        return super().fit(self._sending(x), *args, **kwargs)  # type: ignore[misc]

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().evaluate(self._sending(x), *args, **kwargs)  # type: ignore[misc]

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return super().predict(self._sending(x), *args, **kwargs)  # type: ignore[misc]

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().train_step(*self._sent(args), **kwargs)  # type: ignore[misc]

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().test_step(*self._sent(args), **kwargs)  # type: ignore[misc]

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().predict_step(*self._sent(args), **kwargs)  # type: ignore[misc]

    def _sending(self, data: Any) -> Any:
        if not isinstance(data, keras.utils.PyDataset) or data.use_multiprocessing:  # Other processes have no GPU.
            return data
        weight = self._weight()
        return MappedBatches(data, partial(sent, beside=weight)) if sends_to_gpu(weight) else data

    def _sent(self, data: Any) -> Any:
        return sent(data, beside=self._weight())

    def _weight(self) -> Any:
        return next(self.parameters()) if keras.backend.backend() == "torch" else None

    # --- Numbers

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        with numbers_sent(beside=_first(y_pred)):
            return super().compute_loss(x, y, y_pred, sample_weight, training)  # type: ignore[misc]

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with numbers_sent(beside=_first(y_pred)):
            return super().compute_metrics(x, y, y_pred, sample_weight)  # type: ignore[misc]


class _LossMean(keras.metrics.Mean):
    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        with numbers_sent(beside=values):
            super().update_state(values, sample_weight)


def _first(outputs: Any) -> Any:
    return keras.tree.flatten(outputs)[0]

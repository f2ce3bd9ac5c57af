"""Steps that a card does not wait for."""

from typing import Any

import keras

from keras_bert_zoo.sending import numbers_sent, sent


class SendsAhead:
    """For a `keras.Model`: its batches, and the numbers of its losses and metrics, go to a card as `sending` has it."""

    parameters: Any
    _loss_tracker: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        super().compile(*args, **kwargs)  # type: ignore[misc]
        # Keras has made it already, and would keep both.
        self._loss_tracker.__class__ = _LossMean

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().train_step(*self._sent(args), **kwargs)  # type: ignore[misc]

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().test_step(*self._sent(args), **kwargs)  # type: ignore[misc]

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return super().predict_step(*self._sent(args), **kwargs)  # type: ignore[misc]

    def _sent(self, data: Any) -> Any:
        return sent(data, beside=next(self.parameters())) if keras.backend.backend() == "torch" else data

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

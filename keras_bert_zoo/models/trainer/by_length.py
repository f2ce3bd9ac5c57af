"""Prediction of outputs per token: Keras concatenates those of all batches, so they must have one length."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_bert_zoo.models.trainer.feeding import FedModel
from keras_bert_zoo.text.batching import padded_length, static_lengths
from keras_bert_zoo.text.packing import Examples


def predict_stream(model: FedModel, x: Any, **options: Any) -> np.ndarray:
    """Predict streamed batches, which cannot be grouped by length."""
    try:
        outputs = FedModel.predict(model, x, **options)
    except ValueError as error:
        if "concatenat" not in str(error):  # NumPy's error.
            raise
        outputs = None
    if not isinstance(outputs, np.ndarray):  # Ragged, on TensorFlow.
        raise ValueError("`x` must have batches of one length if it is streamed. Received: batches of several lengths")
    return outputs


def outputs_by_length(
    model: FedModel, examples: Examples, batch_size: int | None = None, **options: Any
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield indices of examples and their outputs, with one pass of `predict` for each of a few lengths."""
    most_tokens = model.most_predicted_tokens if batch_size is None else None
    few = static_lengths(model.backbone.architecture["max_sequence_length"])
    lengths = np.array([padded_length(max(int(length), 1), few) for length in examples.lengths])
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        batches = model._batches(
            examples,
            None,
            None,
            batch_size,
            rows,
            most_tokens=most_tokens,
            few_sizes=bool(model.static_lengths),
            static_lengths=(int(length),),
        )
        yield rows, batches.restore_order(model.predict_fed(model._fed(batches), **options))

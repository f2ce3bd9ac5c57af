"""Prediction of outputs per token: Keras concatenates those of all batches, so they must have one length."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_positive_int, python_number
from keras_bert_zoo.models.feeding import FedModel
from keras_bert_zoo.text.batching import LengthSortedBatches, padded_length, static_lengths
from keras_bert_zoo.text.packing import Examples
from keras_bert_zoo.training.distribution import replicas


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
    batch_size = python_number(batch_size)
    if batch_size is not None:
        check_positive_int(batch_size=batch_size)
    few = static_lengths(model.backbone.architecture["max_sequence_length"])
    lengths = np.array([padded_length(max(int(length), 1), few) for length in examples.lengths])
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        batches = LengthSortedBatches(
            examples,
            batch_size=batch_size or 32,
            rows=rows,
            static_lengths=(int(length),),
            multiple_of=replicas(model),
            most_tokens=model.most_predicted_tokens if batch_size is None else None,
            few_sizes=bool(model.static_lengths),
        )
        fed = batches.to_tf() if keras.backend.backend() == "tensorflow" else batches
        yield rows, batches.restore_order(model.predict_fed(fed, **options))

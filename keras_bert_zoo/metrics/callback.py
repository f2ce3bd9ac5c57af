"""Add scores of the dev data to the logs of `fit`."""

from collections.abc import Callable, Mapping
from typing import Any

import keras


class ValidationScores(keras.callbacks.Callback):
    """Scores the model after each epoch and adds the results to the logs, with the prefix `val_`.

    They appear in the history and the progress bar. `EarlyStopping`, `ModelCheckpoint` and Keras Tuner can monitor them
    if they come later in `callbacks`.

    Args:
        score: Function from the model to numbers by name.

    Example:

    ```python
    def score(model):
        return glue_scores("cola", dev.y, model.predict(dev.x, verbose=0))

    best = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_matthews", mode="max", save_best_only=True)
    classifier.fit(train.x, train.y, epochs=3, callbacks=[ValidationScores(score), best])
    ```
    """

    def __init__(self, score: Callable[[Any], Mapping[str, float]]) -> None:
        super().__init__()
        if not callable(score):
            raise ValueError(f"`score` must be a function of the model. Received: score={score!r}")
        self.score = score

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        scores = {f"val_{name}": float(value) for name, value in self.score(self.model).items()}
        if logs is not None:
            logs.update(scores)

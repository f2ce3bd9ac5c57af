"""Report a run's progress: speed in the progress line and the log, scalars for TensorBoard."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras

from keras_bert_zoo.pretraining.batches import PretrainingBatches
from keras_bert_zoo.pretraining.record_batches import RecordBatches
from keras_bert_zoo.training.distribution import device_count
from keras_bert_zoo.training.runs import batches_done
from keras_bert_zoo.training.speed import peak_flops, training_flops


class Speed(keras.callbacks.Callback):
    """Adds `tokens_per_second`, without padding, and `mfu` to the logs.

    `mfu` is the fraction of the devices' peak matrix-product throughput that the model's own products use (Chowdhery et
    al. 2022, appendix B). For an accelerator in half precision the peak is the data sheet's; otherwise it is measured.
    Where it is not known, there is no `mfu`.

    Args:
        model: The model being trained.
        batches: The data it is trained on.
    """

    async_safe = True  # See `StopAtNaN`.

    def __init__(self, model: keras.Model, batches: PretrainingBatches | RecordBatches) -> None:
        super().__init__()
        length = batches.mean_length
        flops = training_flops(model.backbone.architecture, length, batches.mean_predictions)
        self._step = {"tokens_per_second": batches.batch_size * length}
        peak = peak_flops(model.backbone.embeddings.compute_dtype)
        if peak is not None:
            self._step["mfu"] = batches.batch_size * flops / (peak * device_count(model))
        self._start = 0.0
        self._logs: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        rate = batches_done(self, batch) / (time.perf_counter() - self._start)
        self._logs = {name: step * rate for name, step in self._step.items()}
        if logs is not None:
            logs.update(self._logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs.update(self._logs)  # The speed of training only; validation ran in between.


def scalars(folder: Path, epoch_steps: int) -> list[keras.callbacks.Callback]:
    """Return the TensorBoard callback if tensorboard is installed; Keras' own callback needs TensorFlow."""
    return [Scalars(folder, epoch_steps)] if find_spec("tensorboard") else []


class Scalars(keras.callbacks.Callback):
    """Writes each epoch's logs as TensorBoard scalars, with the number of updates as the step."""

    def __init__(self, folder: Path, epoch_steps: int) -> None:
        super().__init__()
        self._folder = folder
        self._epoch_steps = epoch_steps
        self._writer: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(self._folder))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for name, value in (logs or {}).items():
            self._writer.add_scalar(name, value, (epoch + 1) * self._epoch_steps)
        self._writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        self._writer.close()

"""How batches reach Keras' training loop on each backend."""

from typing import Any

import keras
import numpy as np

from keras_bert_zoo.models.inputs import INPUT_NAMES
from keras_bert_zoo.text.batching import LengthSortedBatches, padded_length, static_lengths


class FollowEpochs(keras.callbacks.Callback):
    """Tells the batches the number of the epoch, on which their order depends; a resumed run goes on as it would."""

    def __init__(self, batches: LengthSortedBatches) -> None:
        super().__init__()
        self.batches = batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches.epoch = epoch


def replicas(model: keras.Model) -> int:
    """Into how many parts a batch is split."""
    if keras.backend.backend() == "tensorflow":
        return model.distribute_strategy.num_replicas_in_sync
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    axis = distribution.batch_dim_name
    return int(mesh.shape[mesh.axis_names.index(axis)])


def task_lengths(task: Any) -> tuple[int, ...]:
    """The lengths a task's batches are padded to: few where each shape compiles a program, else as they come."""
    return static_lengths(task.backbone.architecture["max_sequence_length"]) if task.jit_compile else ()


def is_tf_dataset(x: Any) -> bool:
    """Whether `x` is a `tf.data.Dataset`, without importing TensorFlow to find out."""
    return any(cls.__name__ == "DatasetV2" and cls.__module__.startswith("tensorflow.") for cls in type(x).__mro__)


def tokenise_tf_dataset(dataset: Any, task: Any) -> Any:
    """Tokenise a batched `tf.data.Dataset` of strings as it streams; one of ready arrays is returned as it is."""
    import tensorflow as tf

    spec = dataset.element_spec
    parts = spec if isinstance(spec, tuple) else (spec,)
    if isinstance(parts[0], dict):
        task.backbone.check_inputs(parts[0])
        return dataset
    texts = parts[0] if isinstance(parts[0], tuple) else (parts[0],)
    if len(texts) > 2 or any(getattr(text, "dtype", None) != tf.string or text.shape.rank != 1 for text in texts):
        raise ValueError(
            "`x` must be a data set of batches whose inputs are strings [batch], a pair of those, or a dict of "
            f"{', '.join(INPUT_NAMES)}. Received: element_spec={spec}"
        )
    if task.preprocessor is None:
        raise ValueError("`x` must be a data set of ready arrays, as the task has preprocessor=None. Received: strings")
    lengths = task_lengths(task)

    def tokenise(*columns: np.ndarray) -> list[np.ndarray]:
        examples = task.preprocessor.pack(columns if len(columns) == 2 else columns[0])
        longest = int(examples.lengths.max())
        batch = examples.take(np.arange(len(examples.lengths)), padded_length(longest, lengths))
        return [batch[name] for name in INPUT_NAMES]

    def encode_labels(labels: np.ndarray) -> np.ndarray:
        return task.encode_targets(labels, len(labels))

    def convert(*element: Any) -> tuple[Any, ...]:
        columns = element[0] if isinstance(element[0], tuple) else (element[0],)
        arrays = tf.numpy_function(tokenise, columns, [tf.int32] * 3, stateful=False)
        inputs = {name: tf.ensure_shape(array, (None, None)) for name, array in zip(INPUT_NAMES, arrays, strict=True)}
        if len(element) > 1 and element[1].dtype == tf.string:
            labels = tf.numpy_function(encode_labels, [element[1]], tf.int32, stateful=False)
            return (inputs, tf.ensure_shape(labels, (None,)), *element[2:])
        return (inputs, *element[1:])

    return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

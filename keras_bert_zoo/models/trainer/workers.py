"""Training on several replicas and workers, where Keras' TensorFlow trainer fails or is wrong (Keras 3.15)."""

from collections.abc import Callable
from typing import Any

import keras

from keras_bert_zoo.text.batching import PartedBatches
from keras_bert_zoo.training.distribution import is_multi_worker, is_tpu


class TrainsOnWorkers:
    """Mixin for a `keras.Model` that overrides three parts of `keras/src/backend/tensorflow/trainer.py`."""

    distribute_strategy: Any
    jit_compile: Any
    steps_per_execution: int

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Keras needs only the shapes of the first batch, but reduces it over the workers and fails to convert the
        # result. This worker's own share has the shapes.
        if iterator is not None and is_multi_worker(self.distribute_strategy):
            _, _, batches = next(iter(iterator))
            local = self.distribute_strategy.experimental_local_results
            data_batch = keras.tree.map_structure(lambda value: local(value)[0], next(batches))
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)  # type: ignore[misc]

    def check_compiled(self) -> None:
        """Refuse what the model was compiled with if its strategy cannot do it."""
        if keras.backend.backend() != "tensorflow" or self.distribute_strategy.num_replicas_in_sync == 1:
            return
        strategy = self.distribute_strategy
        if self.jit_compile:
            raise ValueError(
                "`jit_compile` must be False on several replicas, whose variables one XLA program cannot reach; a TPU "
                f"compiles by itself. Received: jit_compile=True on {strategy.num_replicas_in_sync} replicas"
            )
        if self.steps_per_execution > 1 and not is_tpu(strategy):
            raise ValueError(  # TensorFlow fails on the branches of Keras' loop.
                "`steps_per_execution` must be 1 on several replicas, except on a TPU. Received: "
                f"steps_per_execution={self.steps_per_execution} on {strategy.num_replicas_in_sync} replicas"
            )

    def _make_function(self, step_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if keras.backend.backend() != "tensorflow":
            return super()._make_function(step_function, *args, **kwargs)  # type: ignore[misc]
        self.check_compiled()
        strategy = self.distribute_strategy
        # Keras averages a step's scalars along their first dimension, so they are given one.
        if is_multi_worker(strategy):
            scalars = step_function

            def step_function(data: Any) -> Any:
                return keras.tree.map_structure(lambda value: keras.ops.reshape(value, (1,)), scalars(data))

        execute = super()._make_function(step_function, *args, **kwargs)  # type: ignore[misc]
        if not is_tpu(strategy):
            return execute
        return lambda iterator: execute(_as_endless(iterator, self.steps_per_execution))

    def predict_on_batch(self, x: Any) -> Any:
        outputs = super().predict_on_batch(x)  # type: ignore[misc]
        if keras.backend.backend() != "tensorflow":
            return outputs
        # Keras passes the whole batch to each replica, and concatenates the outputs.
        parts = self.distribute_strategy.num_replicas_in_sync
        return keras.tree.map_structure(lambda array: array[: len(array) // parts], outputs)


def _as_endless(iterator: Any, steps: int) -> Any:
    """Say of a distributed iterator whose end is also that of an execution of `steps` steps that it has no end.

    Otherwise TensorFlow prepares a batch of no rows for an end within an execution, and then the TPU's program is for
    any number of rows.
    """
    import tensorflow as tf

    batches = iterator._cardinality if isinstance(iterator, tf.distribute.DistributedIterator) else 0
    if batches > 0 and batches % steps == 0:
        iterator._cardinality = tf.data.INFINITE_CARDINALITY
    return iterator


def distribute_parts(batches: PartedBatches, strategy: Any) -> Any:
    """Distribute batches of which each worker makes its own rows; only all workers together have a whole batch."""
    dataset = strategy.distribute_datasets_from_function(lambda context: part_for(batches, context))
    # Keras uses this as the number of steps; TensorFlow counted the devices' parts one by one.
    dataset._cardinality = len(batches)
    return dataset


def part_for(batches: PartedBatches, context: Any) -> Any:
    """Return one worker's rows of each batch, as one batch per device, in turn."""
    rows = context.get_per_replica_batch_size(batches.batch_size)
    return batches.to_tf(context.input_pipeline_id, context.num_input_pipelines).rebatch(rows, drop_remainder=True)

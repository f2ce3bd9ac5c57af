"""`tf.data` sets whose batches are checked and converted as they are streamed."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.models.inputs import INPUT_NAMES, checked_stream_weights
from keras_bert_zoo.models.trainer.streaming import (
    UNEVEN,
    check_divides,
    check_has_targets,
    check_parts,
    is_none,
    must_divide,
)
from keras_bert_zoo.training.distribution import check_calls_python, on_tpu, replicas


def check_ready(dataset: Any, raw: str) -> None:
    """Check that a `tf.data.Dataset` holds ready arrays, for a task whose raw input, `raw`, cannot be streamed."""
    spec = dataset.element_spec
    if not isinstance(spec[0] if isinstance(spec, tuple) else spec, dict):
        raise ValueError(f"`x` must be a data set of ready arrays, or {raw} in memory. Received: element_spec={spec}")


def check_pretraining(dataset: Any, task: Any, needs_targets: bool) -> Any:
    """Return a `tf.data.Dataset` of ready batches that fails on an invalid id, position or label, or a long text.

    It uses TensorFlow operations only, as it may run on hosts that this program's Python does not reach.
    """
    import tensorflow as tf

    check_parts(dataset.element_spec)
    check_has_targets(dataset.element_spec, needs_targets)
    architecture = task.backbone.architecture
    vocabulary_size, num_segments = architecture["vocabulary_size"], architecture["num_segments"]
    longest = architecture["max_sequence_length"]

    def check(inputs: dict[str, Any], *rest: Any) -> tuple[Any, ...]:
        inputs = {name: tf.cast(x, "int32") if x.dtype == tf.bool else x for name, x in inputs.items()}
        length = tf.shape(inputs["token_ids"])[1]
        told = [f"`token_ids` must have at most {longest} tokens, the model's max_sequence_length. Received:", length]
        tf.debugging.Assert(length <= longest, told)
        tokens = vocabulary_size, f"{vocabulary_size}), the vocabulary of the model"
        ids = {
            "token_ids": (inputs["token_ids"], *tokens),
            "segment_ids": (inputs["segment_ids"], num_segments, f"{num_segments}), the segments of the model"),
            "mask_positions": (inputs["mask_positions"], length, "length)"),
        }
        targets = rest[0] if rest and isinstance(rest[0], dict) else {}
        stops = {"mlm": tokens, "nsp": (2, "2)")}
        ids |= {name: (targets[name], *stop) for name, stop in stops.items() if name in targets}
        for name, (values, stop, words) in ids.items():
            wide = tf.cast(values, "int64")  # Stops may be too large for the values' own type.
            inside = tf.reduce_all((wide >= 0) & (wide < tf.cast(stop, "int64")))
            tf.debugging.Assert(inside, [f"`{name}` must be in [0, {words}. Received: other values"])
        return (inputs, *rest)

    return _divided(dataset, replicas(task)).map(check)


def tokenise_tf_dataset(dataset: Any, task: Any, needs_targets: bool) -> Any:
    """Convert a batched `tf.data.Dataset` of strings or ready arrays to checked arrays and targets, lazily.

    With `needs_targets`, there must be targets. The first batch is checked here, so that an error in it is a
    `ValueError`. An error in a later batch stops the run with TensorFlow's error around the same message.
    """
    import tensorflow as tf

    check_calls_python(task)
    spec = dataset.element_spec
    if isinstance(spec, tuple) and len(spec) == 3 and is_none(spec[2]):
        return tokenise_tf_dataset(dataset.map(lambda x, y, _: (x, y)), task, needs_targets)
    check_parts(spec)
    parts = spec if isinstance(spec, tuple) else (spec,)
    ready, pairs = isinstance(parts[0], dict), isinstance(parts[0], tuple)
    columns = parts[0] if pairs else (parts[0],)
    if ready:
        task.check_inputs(parts[0])
    elif len(columns) != 1 + pairs or any(getattr(c, "dtype", None) != tf.string or c.shape.rank != 1 for c in columns):
        raise ValueError(
            "`x` must be a data set of batches whose inputs are strings [batch], a pair of those, or a dict of "
            f"{', '.join(INPUT_NAMES)}. Received: element_spec={spec}"
        )
    elif task.preprocessor is None:
        raise ValueError("`x` must be a data set of ready arrays, as the task has preprocessor=None. Received: strings")
    if not ready:
        task.check_pairs(pairs)
    check_has_targets(spec, needs_targets)
    make_inputs = _check_arrays(task) if ready else _tokenise_in_graph(task)

    def make_targets(targets: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        if not ready:
            return task.encode_targets(targets, len(targets))
        columns, weights = rest[: len(INPUT_NAMES)], rest[len(INPUT_NAMES) :]
        return task.targets_of_arrays(dict(zip(INPUT_NAMES, columns, strict=True)), targets, *weights)

    first = next(dataset.take(1).as_numpy_iterator(), None)
    if first is None:
        raise ValueError("`x` must hold at least one batch. Received: an empty data set")
    dataset = _divided(dataset, replicas(task), first)
    first = first if isinstance(first, tuple) else (first,)
    if ready:
        task.check_inputs(first[0])
    if len(first) == 1 or first[1] is None:
        return dataset.map(lambda x, *_: (make_inputs(x),), num_parallel_calls=tf.data.AUTOTUNE)
    for weights in first[2:]:
        checked_stream_weights(weights, np.shape(first[1]))
    task.check_loss(first[1])
    if task.are_foreign(first[1]):
        return dataset.map(
            lambda x, y, *weights: (make_inputs(x), y, *map(_finite, weights)), num_parallel_calls=tf.data.AUTOTUNE
        )
    names = INPUT_NAMES if ready else ()
    targets = make_targets(first[1], *(first[0][name] for name in names), *first[2:])

    def convert(x: Any, y: Any, *weights: Any) -> tuple[Any, ...]:
        inputs = make_inputs(x)
        weights = tuple(map(_finite, weights))
        given = [y, *(inputs[name] for name in names), *weights]
        encoded = tf.numpy_function(make_targets, given, targets.dtype, stateful=False)
        # Rows of one size become targets of one size.
        sizes = targets.shape[1:] if y.shape[1:].is_fully_defined() else (None,) * (targets.ndim - 1)
        return (inputs, tf.ensure_shape(encoded, (inputs[INPUT_NAMES[0]].shape[0], *sizes)), *weights)

    return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _divided(dataset: Any, devices: int, first: Any = None) -> Any:
    """Return a `tf.data.Dataset` that fails on a batch that does not divide equally among devices.

    The size that all batches have, or that of `first`, if given, is checked here.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    if devices == 1 or not must_divide(spec):
        return dataset
    stated = keras.tree.flatten(spec)[0].shape[0]
    size = len(keras.tree.flatten(first)[0]) if stated is None and first is not None else stated
    if size is not None:
        check_divides(size, devices)
    if stated is not None:
        return dataset

    def check(*batch: Any) -> tuple[Any, ...]:
        count = tf.shape(keras.tree.flatten(batch)[0])[0]
        tf.debugging.Assert(count % devices == 0, [tf.strings.format(UNEVEN.format(devices, "{}"), count)])
        return batch

    return dataset.map(check)


def _finite(weights: Any) -> Any:
    import tensorflow as tf

    return tf.debugging.assert_all_finite(tf.cast(weights, "float32"), "`sample_weight` must hold finite numbers")


def _check_arrays(task: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    def check(*columns: np.ndarray) -> list[np.ndarray]:
        task.check_inputs(dict(zip(INPUT_NAMES, columns, strict=True)))
        return [column.astype("int32") for column in columns]

    def checked(x: Any) -> Any:
        arrays = tf.numpy_function(check, [x[name] for name in INPUT_NAMES], [tf.int32] * 3, stateful=False)
        return {name: tf.ensure_shape(array, x[name].shape) for name, array in zip(INPUT_NAMES, arrays, strict=True)}

    return checked


def _tokenise_in_graph(task: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    tokenizer, preprocessor = task.preprocessor.tokenizer.in_graph(), task.preprocessor

    def tokenised(x: Any) -> Any:
        first, second = x if isinstance(x, tuple) else (x, None)
        size, longest = first.shape[0], preprocessor.sequence_length
        # One length makes the shape a fixed one, if the batch size is.
        length = longest if on_tpu(task) and size is not None else None
        inputs = tokenizer.pack(first, second, longest, task.static_lengths if length is None else (length,))
        return {name: tf.ensure_shape(array, (size, length)) for name, array in inputs.items()}

    return tokenised

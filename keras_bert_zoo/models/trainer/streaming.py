"""Streamed data: tokenisation of a batched `tf.data.Dataset` of strings, and checks of everything else."""

from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from itertools import chain
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.models.inputs import INPUT_NAMES, checked_stream_weights
from keras_bert_zoo.text.batching import LengthSortedBatches
from keras_bert_zoo.training.distribution import check_calls_python, replicas

_UNEVEN = (
    "`x` must have batches divisible by the number of replicas, {}, for example with drop_remainder=True. "
    "Received: a batch of {}"
)


def is_tf_dataset(x: Any) -> bool:
    """Whether `x` is a `tf.data.Dataset`, without importing TensorFlow to find out."""
    return _is_of(x, "tensorflow", "DatasetV2")


def is_stream(x: Any) -> bool:
    """Whether `x` is a data set that Keras takes."""
    return (
        is_tf_dataset(x)
        or is_mappable(x)
        or _is_of(x, "tensorflow", "DistributedDataset", "DistributedDatasetsFromFunction")
        or _is_of(x, "grain", "MapDataset", "IterDataset", "DataLoader")
    )


def _is_of(x: Any, package: str, *names: str) -> bool:
    """Whether `x` is of a class of one of these names, without importing its package to find out."""
    return any(cls.__name__ in names and cls.__module__.startswith(f"{package}.") for cls in type(x).__mro__)


def checked_stream(x: Any, task: Any, needs_targets: bool) -> Any:
    """Apply `task.ready_batch` to each batch of data that Keras takes besides `tf.data`; the first is checked here.

    With `needs_targets`, each batch must have targets. For a generator, the result is a new generator that starts with
    the first batch again, and so does the first pass over a loader, whose data may come but once. A `tf.distribute` or
    grain data set is left as it is, unchecked.
    """
    begun: Iterator[Any] | None = None
    if isinstance(x, Generator):
        first = next(x, None)
        x = (batch for batch in chain([first], x)) if first is not None else x
    elif isinstance(x, keras.utils.PyDataset):
        first = x[0] if x.num_batches != 0 else None
    elif _is_loader(x):
        rest = iter(x)
        first = next(rest, None)
        begun = chain([first], rest)
    else:
        return x
    inputs = first[0] if isinstance(first, (tuple, list)) and first else first
    if not (inputs is None or isinstance(inputs, dict)):
        raise ValueError(
            f"`x` must hold batches of ready arrays, a dict of {', '.join(INPUT_NAMES)}, if it is a "
            f"{type(x).__name__}; raw text in memory is passed as a list. Received: batches whose inputs are a "
            f"{type(inputs).__name__}"
        )
    if first is None:
        raise ValueError(f"`x` must hold at least one batch. Received: an empty {type(x).__name__}")
    if isinstance(x, LengthSortedBatches):  # Made by a task from checked data.
        _check_targets(first, needs_targets)
        return x
    ready = partial(_ready, task=task, devices=replicas(task), needs_targets=needs_targets)
    ready(first)
    return mapped(x, ready, begun)


def _ready(batch: Any, task: Any, devices: int, needs_targets: bool) -> tuple[Any, ...]:
    batch = task.ready_batch(batch)
    _check_targets(batch, needs_targets)
    if _must_divide(batch):
        _check_divides(len(next(iter(batch[0].values()))), devices)
    return batch


def _must_divide(batch: Any) -> bool:
    """Whether a batch, or the `element_spec` of batches, must divide equally; TensorFlow predicts any number."""
    return keras.backend.backend() == "jax" or _has_targets(batch)


def _check_divides(count: int, devices: int) -> None:
    """Check that a batch divides equally among devices: only in-memory data is filled up with copies of weight zero."""
    if count % devices:
        raise ValueError(_UNEVEN.format(devices, count))


def _divided(dataset: Any, devices: int, first: Any = None) -> Any:
    """Return a `tf.data.Dataset` that fails on a batch that does not divide equally among devices.

    The size that all batches have, or that of `first`, if given, is checked here.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    if devices == 1 or not _must_divide(spec):
        return dataset
    stated = keras.tree.flatten(spec)[0].shape[0]
    size = len(keras.tree.flatten(first)[0]) if stated is None and first is not None else stated
    if size is not None:
        _check_divides(size, devices)
    if stated is not None:
        return dataset

    def check(*batch: Any) -> tuple[Any, ...]:
        count = tf.shape(keras.tree.flatten(batch)[0])[0]
        tf.debugging.Assert(count % devices == 0, [tf.strings.format(_UNEVEN.format(devices, "{}"), count)])
        return batch

    return dataset.map(check)


def _check_targets(batch: Any, needs_targets: bool) -> None:
    """Check that a batch, or the `element_spec` of batches, has targets if there is a loss."""
    if needs_targets and not _has_targets(batch):
        raise ValueError(
            "`y` must be part of the data set, unless you compile with loss=None. "
            "Received: batches of inputs without targets"
        )


def _has_targets(batch: Any) -> bool:
    """Whether a batch, or the `element_spec` of batches, has targets."""
    return isinstance(batch, tuple) and len(batch) > 1 and not _is_none(batch[1])


def _is_none(part: Any) -> bool:
    """Whether a part of a batch, or of an `element_spec`, is None."""
    return part is None or type(part).__name__ == "NoneTensorSpec"


def is_mappable(x: Any) -> bool:
    return isinstance(x, (Generator, keras.utils.PyDataset)) or _is_loader(x)


def inputs_alone(x: Any) -> Any:
    """Drop the targets of streamed data for `predict`: they may be invalid, such as -1 in GLUE's test sets."""
    if is_tf_dataset(x):
        return x.map(lambda inputs, *_: (inputs,)) if isinstance(x.element_spec, tuple) else x
    return mapped(x, _inputs_of) if is_mappable(x) else x


def refuse_bare_pairs(x: Any, task: Any) -> None:
    """Refuse to predict two columns of strings if the second is not class names: pairs must be nested tuples."""
    spec = x.element_spec if is_tf_dataset(x) else None
    if not isinstance(spec, tuple) or [getattr(part, "dtype", None) for part in spec[:2]] != ["string"] * 2:
        return
    second = next(x.take(1).as_numpy_iterator())[1]
    try:
        task.encode_targets(second, len(second))
    except ValueError:
        raise ValueError(
            "`x` must be a data set of ((first, second),) to stream pairs: the second of two strings is read as y, and "
            f"must be a class name. Received: element_spec={spec}"
        ) from None


def _inputs_of(batch: Any) -> Any:
    return (batch[0],) if isinstance(batch, (tuple, list)) and len(batch) else batch


def mapped(x: Any, function: Callable[[Any], Any], begun: Iterator[Any] | None = None) -> Any:
    """Apply `function` to each batch of a generator, a `keras.utils.PyDataset` or a PyTorch `DataLoader`.

    `begun` holds the batches of the first pass over a loader, if it has begun already.
    """
    if isinstance(x, Generator):
        return (function(batch) for batch in x)
    return _mapped_loader(x, function, begun) if _is_loader(x) else MappedBatches(x, function)


class MappedBatches(keras.utils.PyDataset):
    """Apply `function` to each batch of another `PyDataset`."""

    def __init__(self, batches: keras.utils.PyDataset, function: Callable[[Any], Any]) -> None:
        options = {name: getattr(batches, name) for name in ("workers", "use_multiprocessing", "max_queue_size")}
        super().__init__(**options)
        self.batches = batches
        self.function = function

    @property
    def num_batches(self) -> int | None:
        return self.batches.num_batches

    def __getitem__(self, index: int) -> Any:
        return self.function(self.batches[index])

    def on_epoch_begin(self) -> None:
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.batches.on_epoch_end()


def _is_loader(x: Any) -> bool:
    return _is_of(x, "torch", "DataLoader")


def _mapped_loader(loader: Any, function: Callable[[Any], Any], begun: Iterator[Any] | None) -> Any:
    from torch.utils.data import DataLoader

    of_length = hasattr(loader.dataset, "__len__")  # Keras' own test.
    return DataLoader(_mapped_class(of_length)(loader, function, begun), batch_size=None)


@cache
def _mapped_class(of_length: bool) -> Any:
    from torch.utils.data import IterableDataset

    class Mapped(IterableDataset):
        def __init__(self, loader: Any, function: Callable[[Any], Any], begun: Iterator[Any] | None) -> None:
            self.loader = loader
            self.function = function
            self.begun = begun

        def __iter__(self) -> Iterator[Any]:
            begun, self.begun = self.begun, None
            return map(self.function, self.loader if begun is None else begun)

    if of_length:
        Mapped.__len__ = lambda self: len(self.loader)
    return Mapped


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

    _check_targets(dataset.element_spec, needs_targets)
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
            inside = tf.reduce_all((values >= 0) & (values < tf.cast(stop, values.dtype)))
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
    if isinstance(spec, tuple) and len(spec) == 3 and _is_none(spec[2]):
        return tokenise_tf_dataset(dataset.map(lambda x, y, _: (x, y)), task, needs_targets)
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
    _check_targets(spec, needs_targets)
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
    if task.are_foreign(first[1]):
        return dataset.map(lambda x, *rest: (make_inputs(x), *rest), num_parallel_calls=tf.data.AUTOTUNE)
    names = INPUT_NAMES if ready else ()
    targets = make_targets(first[1], *(first[0][name] for name in names), *first[2:])

    def convert(x: Any, y: Any, *weights: Any) -> tuple[Any, ...]:
        inputs = make_inputs(x)
        weights = tuple(map(_finite, weights))
        given = [y, *(inputs[name] for name in names), *weights]
        encoded = tf.numpy_function(make_targets, given, targets.dtype, stateful=False)
        return (inputs, tf.ensure_shape(encoded, (None,) * targets.ndim), *weights)

    return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _finite(weights: Any) -> Any:
    import tensorflow as tf

    return tf.debugging.assert_all_finite(tf.cast(weights, "float32"), "`sample_weight` must be finite")


def _check_arrays(task: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    def check(*columns: np.ndarray) -> list[np.ndarray]:
        task.check_inputs(dict(zip(INPUT_NAMES, columns, strict=True)))
        return [column.astype("int32") for column in columns]

    def checked(x: Any) -> Any:
        arrays = tf.numpy_function(check, [x[name] for name in INPUT_NAMES], [tf.int32] * 3, stateful=False)
        shape = (None,) * x[INPUT_NAMES[0]].shape.rank
        return {name: tf.ensure_shape(array, shape) for name, array in zip(INPUT_NAMES, arrays, strict=True)}

    return checked


def _tokenise_in_graph(task: Any) -> Callable[[Any], Any]:
    import tensorflow as tf

    tokenizer, preprocessor = task.preprocessor.tokenizer.in_graph(), task.preprocessor

    def tokenised(x: Any) -> Any:
        first, second = x if isinstance(x, tuple) else (x, None)
        inputs = tokenizer.pack(first, second, preprocessor.sequence_length, task.static_lengths)
        return {name: tf.ensure_shape(array, (None, None)) for name, array in inputs.items()}

    return tokenised

"""Streamed data: what it is, and checks of its batches as they come; `tf_streams` has those of `tf.data` sets."""

from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from itertools import chain
from typing import Any

import keras

from keras_bert_zoo.models.inputs import INPUT_NAMES
from keras_bert_zoo.text.batching import LengthSortedBatches
from keras_bert_zoo.training.distribution import replicas

UNEVEN = (
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
    the first batch again, and so does the first pass over a loader, whose data may come but once (Keras' own looks
    at it excepted: `predict` on JAX and PyTorch has none). A `tf.distribute` or
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
        kind = type(x.batches if isinstance(x, MappedBatches) else x).__name__
        raise ValueError(
            f"`x` must hold batches of ready arrays, a dict of {', '.join(INPUT_NAMES)}, if it is a {kind}; raw text "
            f"in memory is passed as a list. Received: batches whose inputs are a {type(inputs).__name__}"
        )
    if first is None:
        raise ValueError(f"`x` must hold at least one batch. Received: an empty {type(x).__name__}")
    if isinstance(x, LengthSortedBatches):  # Made by a task from checked data.
        check_has_targets(first, needs_targets)
        return x
    ready = partial(_ready, task=task, devices=replicas(task), needs_targets=needs_targets)
    ready(first)
    return mapped(x, ready, begun)


def _ready(batch: Any, task: Any, devices: int, needs_targets: bool) -> tuple[Any, ...]:
    batch = task.ready_batch(batch)
    check_has_targets(batch, needs_targets)
    if must_divide(batch):
        check_divides(len(next(iter(batch[0].values()))), devices)
    return batch


def must_divide(batch: Any) -> bool:
    """Whether a batch, or the `element_spec` of batches, must divide equally; TensorFlow predicts any number."""
    return keras.backend.backend() == "jax" or has_targets(batch)


def check_divides(count: int, devices: int) -> None:
    """Check that a batch divides equally among devices: only in-memory data is filled up with copies of weight zero."""
    if count % devices:
        raise ValueError(UNEVEN.format(devices, count))


def check_parts(batch: Any) -> None:
    """Check that a batch, or the `element_spec` of batches, has one to three parts."""
    if isinstance(batch, (tuple, list)) and not 1 <= len(batch) <= 3:
        raise ValueError(
            "`x` must hold batches of (inputs,), (inputs, targets) or (inputs, targets, weights). "
            f"Received: a batch of {len(batch)} parts"
        )


def check_has_targets(batch: Any, needs_targets: bool) -> None:
    """Check that a batch, or the `element_spec` of batches, has targets if there is a loss."""
    if needs_targets and not has_targets(batch):
        raise ValueError(
            "`y` must be part of the data set, unless you compile with loss=None. "
            "Received: batches of inputs without targets"
        )


def has_targets(batch: Any) -> bool:
    """Whether a batch, or the `element_spec` of batches, has targets."""
    return isinstance(batch, tuple) and len(batch) > 1 and not is_none(batch[1])


def is_none(part: Any) -> bool:
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

"""Conversion of texts, arrays or datasets to the batches that Keras is fed."""

import random
from typing import Any, ClassVar

import keras
import numpy as np

from keras_bert_zoo.checks import check_positive_int, python_number
from keras_bert_zoo.models.inputs import ChecksInputs, as_array, checked_stream_weights, checked_weights
from keras_bert_zoo.models.trainer.streaming import check_parts, checked_stream, is_mappable, is_stream, is_tf_dataset
from keras_bert_zoo.models.trainer.tf_streams import check_ready, tokenise_tf_dataset
from keras_bert_zoo.models.trainer.workers import distribute_parts
from keras_bert_zoo.text.batching import LengthSortedBatches, OwnBatches, PartedBatches, static_lengths
from keras_bert_zoo.text.packing import Examples, PaddedArrays
from keras_bert_zoo.text.texts import is_texts
from keras_bert_zoo.training.crossentropy import TokenCrossentropy
from keras_bert_zoo.training.distribution import (
    check_calls_python,
    check_one_process,
    is_multi_worker,
    on_tpu,
    replicas,
    sum_over_workers,
)
from keras_bert_zoo.training.logits import check_targets_fit

_OF_LABELS = (keras.losses.SparseCategoricalCrossentropy, TokenCrossentropy)


class MakesBatches(ChecksInputs):
    """Model over a backbone that makes batches from raw text and ready arrays; a task defines its targets."""

    backbone: Any
    output: Any
    preprocessor: Any
    distribute_strategy: Any
    jit_compile: Any
    batches_class: ClassVar[type[LengthSortedBatches]] = LengthSortedBatches
    raw_inputs: ClassVar[str] = "a list of strings, a tuple of two such lists"
    raw_in_memory: ClassVar[str | None] = None
    """What raw input is, if it cannot be streamed."""
    label_dimensions: ClassVar[int | None] = None
    """Number of dimensions of the targets, if they are integers or names."""

    def check_inputs(self, inputs: Any) -> None:
        self.backbone.check_inputs(inputs)

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        """Check targets and convert them to an array with one row per example; `learn` is True in `fit` only."""
        raise NotImplementedError  # Tasks define it; models fed only ready batches, such as a masked LM, never call it.

    def check_targets(self, examples: Any, targets: np.ndarray, rows: np.ndarray) -> None:
        """Check these rows of encoded targets against their examples; some tasks define it."""

    def check_loss(self, targets: Any) -> None:
        """Check that the loss takes targets of this shape, if the task's own are labels."""
        if self.label_dimensions is not None:
            check_targets_fit(getattr(self, "loss", None), np.shape(targets), self.output.shape)

    def check_pairs(self, pairs: bool) -> None:
        """Check that the backbone has the second segment type that pairs need."""
        segments = self.backbone.architecture["num_segments"]
        if pairs and segments < 2:
            raise ValueError(f"Pairs need a backbone with two segment types. Received: num_segments={segments}")

    @property
    def static_lengths(self) -> tuple[int, ...]:
        """A few lengths to pad to if each shape compiles a program; empty if batches keep their own length."""
        compiles = self.jit_compile and keras.backend.backend() != "torch"  # One PyTorch program takes all lengths.
        return static_lengths(self.backbone.architecture["max_sequence_length"]) if compiles or on_tpu(self) else ()

    def _is_columns(self, x: Any) -> bool:
        """Whether `x` is in-memory data, to be sorted by length; everything else is streamed."""
        if x is None:
            raise ValueError("`x` must be given. Received: x=None")
        return isinstance(x, dict) or is_texts(x)

    def _examples(self, x: Any) -> Examples:
        if isinstance(x, dict):
            arrays = {name: as_array(name, array) for name, array in x.items()}
            self.check_inputs(arrays)
            examples: Examples = PaddedArrays(arrays)
        elif self.preprocessor is None:
            raise ValueError(
                "`x` must be a dict of ready arrays, as the task has preprocessor=None. "
                f"Received: x of type {type(x).__name__}"
            )
        else:
            examples = self.preprocessor.pack(x)
            self.check_pairs(isinstance(x, tuple))
        if self._count_examples(examples) == 0:
            raise ValueError("`x` must hold at least one example. Received: none")
        return examples

    def _count_examples(self, examples: Examples) -> int:
        return len(examples.lengths)

    def _targets(
        self,
        examples: Examples,
        y: Any,
        sample_weight: Any = None,
        learn: bool = False,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        count = len(examples.lengths)
        if y is None:
            raise ValueError("`y` must be given. Received: y=None")
        targets, weights = self.encode_targets(y, count, learn), checked_weights(sample_weight, count)
        self.check_targets(examples, targets, np.arange(count))
        self.check_loss(targets)
        return targets, weights

    def targets_of_arrays(self, arrays: dict[str, np.ndarray], y: Any, weights: np.ndarray | None = None) -> np.ndarray:
        """Check targets against their ready arrays, except those of rows without weight, and encode them."""
        examples = PaddedArrays(arrays)
        if weights is None:
            return self._targets(examples, y)[0]
        targets = self.encode_targets(y, len(examples.lengths))
        if np.size(weights) == len(targets):  # Not weights of tokens.
            self.check_targets(examples, targets, np.flatnonzero(weights))
        return targets

    def ready_batch(self, batch: Any) -> tuple[Any, ...]:
        """Check a streamed batch, `(inputs, targets, weights)` or fewer, as in-memory arrays are checked.

        Targets in a form other than the task's are not changed if the loss is user-defined.
        """
        arrays, y, weights = self._checked_parts(batch)
        if y is None:  # For prediction, or without a loss.
            return (arrays,)
        weights = [keras.ops.convert_to_numpy(weight) for weight in weights]
        if not isinstance(y, (list, tuple)):
            y = keras.ops.convert_to_numpy(y)
        if self.are_labels(y):
            y = self.targets_of_arrays(arrays, y, *weights)
        self.check_loss(y)
        weights = [checked_stream_weights(weight, np.shape(y)) for weight in weights]
        return (arrays, y, *weights)

    def _checked_parts(self, batch: Any) -> tuple[dict[str, np.ndarray], Any, list[Any]]:
        """Return the inputs as arrays, the targets or None, and a list of at most one weights array."""
        check_parts(batch)
        inputs, y, *weights = (*batch, None) if isinstance(batch, (tuple, list)) else (batch, None)
        if isinstance(inputs, dict):
            inputs = {name: keras.ops.convert_to_numpy(array) for name, array in inputs.items()}
        self.check_inputs(inputs)
        arrays = {name: array.astype("int32") for name, array in inputs.items()}
        return arrays, y, [weight for weight in weights if weight is not None]

    def are_labels(self, y: Any) -> bool:
        """Whether targets are, or must be, the integers or names that the task uses.

        With a loss over labels they must be, whatever their form.
        """
        if self.label_dimensions is None:
            return False
        if isinstance(y, (list, tuple)) or isinstance(getattr(self, "loss", None), _OF_LABELS):
            return True
        return bool(y.ndim == self.label_dimensions and y.dtype.kind in "iuOSU")

    def are_foreign(self, y: np.ndarray) -> bool:
        """Whether targets have a form other than the task's own, which the loss must take."""
        return self.label_dimensions is not None and not self.are_labels(y)

    def _batches(
        self,
        examples: Examples,
        targets: np.ndarray | None,
        weight: np.ndarray | None,
        batch_size: int | None,
        rows: np.ndarray | slice = slice(None),
        **options: Any,
    ) -> LengthSortedBatches:
        """Return batches of some rows; `options` are further arguments of `LengthSortedBatches`."""
        batch_size = python_number(batch_size)
        if batch_size is not None:
            check_positive_int(batch_size=batch_size)
        return self.batches_class(
            examples,
            targets,
            weight,
            batch_size=batch_size or 32,
            rows=np.arange(len(examples.lengths))[rows],
            multiple_of=replicas(self),
            one_shape=on_tpu(self),
            **{"static_lengths": self.static_lengths, **options},
        )

    @property
    def _is_one_of_several(self) -> bool:
        """Whether other processes train this model, too."""
        return keras.backend.backend() == "tensorflow" and is_multi_worker(self.distribute_strategy)

    def _draw_seed(self) -> int:
        """Draw a random number, the same on all workers, which must agree on the order."""
        seed = random.randrange(2**31)
        if self._is_one_of_several:
            seed = sum_over_workers(seed, self.distribute_strategy) % 2**31
        return seed

    def _fed(self, batches: Any) -> Any:
        if is_mappable(batches):
            check_calls_python(self)
        if isinstance(batches, OwnBatches):
            check_one_process()
        if keras.backend.backend() != "tensorflow" or not isinstance(batches, OwnBatches):
            return batches
        if isinstance(batches, PartedBatches) and self._is_one_of_several:
            return distribute_parts(batches, self.distribute_strategy)
        return batches.to_tf()

    @property
    def needs_targets(self) -> bool:
        """Whether batches must have targets: those of a subclass with a loss of its own, and none compiled, may not."""
        return getattr(self, "loss", None) is not None

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None, needs_targets: bool = False) -> Any:
        if type(x).__module__.startswith("datasets."):
            raise ValueError(
                "`x` must be columns of a Hugging Face data set, such as fit(d['text'], d['label']). "
                f"Received: x of type {type(x).__name__}"
            )
        if not is_stream(x):
            # The most common mistake is a list of pairs instead of a pair of lists.
            name, value = ("x[0]", x[0]) if isinstance(x, list) and x else ("x", x)
            raise ValueError(
                f"`x` must be {self.raw_inputs}, a dict of arrays or a data set. "
                f"Received: {name} of type {type(value).__name__}"
            )
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"`{name}` must be part of the data set if x is one. Received: x of type {type(x).__name__}"
                )
        if is_tf_dataset(x):
            if self.raw_in_memory is not None:
                check_ready(x, self.raw_in_memory)
            return tokenise_tf_dataset(x, self, needs_targets)
        return self._fed(checked_stream(x, self, needs_targets))

    def _validation(self, data: Any, batch_size: int | None, steps: int | None) -> Any:
        if not isinstance(data, (tuple, list, dict)):
            return self._streamed(data, needs_targets=self.needs_targets)
        if isinstance(data, dict) or len(data) not in (2, 3):
            raise ValueError(
                "`validation_data` must be (x, y) or (x, y, sample_weight). "
                f"Received: a {type(data).__name__} of {len(data)}"
            )
        examples = self._examples(data[0])
        rows = first_rows(steps, batch_size)
        return self._fed(self._batches(examples, *self._targets(examples, *data[1:]), batch_size, rows))


def first_rows(steps: int | None, batch_size: int | None) -> slice:
    """Return the rows of the first `steps` batches, before sorting; Keras may be told to take fewer of any data."""
    most = keras.config.max_steps_per_epoch()
    if steps is None and not most:
        return slice(None)
    steps = python_number(most if steps is None else steps)
    batch_size = 32 if batch_size is None else python_number(batch_size)
    check_positive_int(steps=steps, batch_size=batch_size)
    return slice(min(steps, most or steps) * batch_size)

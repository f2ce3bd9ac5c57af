"""`fit`, `evaluate` and `predict` on raw text."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import keras
import numpy as np

from keras_bert_zoo.checks import check_count, check_positive_int, check_rate, check_trainable, python_number
from keras_bert_zoo.layers.passes import weights_kept
from keras_bert_zoo.models.trainer.batch_making import MakesBatches, first_rows
from keras_bert_zoo.models.trainer.compiled_steps import CompilesSteps
from keras_bert_zoo.models.trainer.jax_states import KeepsStates
from keras_bert_zoo.models.trainer.scheduling import LaysSchedules
from keras_bert_zoo.models.trainer.sending import SendsAhead
from keras_bert_zoo.models.trainer.steps import RunsItsSteps
from keras_bert_zoo.models.trainer.streaming import inputs_alone, refuse_bare_pairs
from keras_bert_zoo.models.trainer.tracing import TracesOnce
from keras_bert_zoo.models.trainer.weighing import WeighsClasses, check_one_weight
from keras_bert_zoo.models.trainer.workers import TrainsOnWorkers
from keras_bert_zoo.text.batching import TOKENS_OF_A_BATCH, OwnBatches


class FedModel(
    MakesBatches,
    WeighsClasses,
    LaysSchedules,
    TrainsOnWorkers,
    TracesOnce,
    RunsItsSteps,
    SendsAhead,
    CompilesSteps,
    KeepsStates,
    keras.Model,
):
    """Model over a backbone. Its `fit`, `evaluate` and `predict` take `x` in one of these forms:

    - raw text, if there is a preprocessor: a list of strings, or for pairs a tuple of two lists;
    - ready arrays: a dict of `token_ids`, `segment_ids` and `padding_mask`, int `[examples, length]`; the last two may
      be bool;
    - a batched `tf.data.Dataset` of either, with the targets, streamed in its own batches;
    - a generator, a `keras.utils.PyDataset` or a PyTorch `DataLoader` of ready batches, checked as they are streamed.

    The first two are in-memory data, tokenised once and batched by similar length. Predictions keep the order of `x`.
    """

    most_predicted_tokens: ClassVar[int | None] = TOKENS_OF_A_BATCH

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """Like `keras.Model.fit`, but also for raw text; see the class.

        Args:
            x: Data.
            y: Targets of in-memory data, as the task describes; streamed data includes them.
            batch_size: Examples per batch of in-memory data; None means 32.
            epochs: Number of the last epoch.
            verbose: As in Keras.
            callbacks: Keras' or your own.
            validation_split: Share of in-memory data to hold out, taken from its end.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or streamed data.
            shuffle: True shuffles anew each epoch, from Keras' random seed; False keeps the order of `x`. A `PyDataset`
                of known length has the order of its batches shuffled, as by Keras, except on several workers; other
                streams keep theirs.
            class_weight: Dict from classes, by name or number, to weights. It cannot be combined with `sample_weight`,
                but multiplies the weights of streamed data.
            sample_weight: One weight per example.
            initial_epoch: Number of epochs already trained.
            steps_per_epoch: Batches per epoch of streamed data; None for in-memory data.
            validation_steps: Number of validation batches, taken from in-memory data before it is sorted.
            validation_batch_size: As `batch_size`.
            validation_freq: As in Keras.

        Returns:
            Keras' `History`.

        Raises:
            ValueError: An argument is not as described. This is found before anything compiles, or, in streamed data,
                when a batch arrives.
        """
        epochs, initial_epoch, steps_per_epoch = map(python_number, (epochs, initial_epoch, steps_per_epoch))
        validation_split = python_number(validation_split)
        with self.undone_where_refused():
            check_rate(validation_split=validation_split)
            check_positive_int(epochs=epochs)
            check_count(initial_epoch=initial_epoch)
            if validation_batch_size is not None:
                check_positive_int(validation_batch_size=python_number(validation_batch_size))
            for variable in self.trainable_variables:
                check_trainable(variable.dtype)
            self.check_optimizer()
            in_memory = self._is_columns(x)
            # Keras would continue in the middle of one epoch's batches, while those of the next epoch are drawn.
            if steps_per_epoch is not None and (in_memory or isinstance(x, OwnBatches)):
                raise ValueError(
                    "`steps_per_epoch` must be None if the batches define their own epochs. "
                    f"Received: steps_per_epoch={steps_per_epoch}"
                )
            share = validation_split if validation_data is None else 0.0
            held_out_size = validation_batch_size or batch_size
            if in_memory:
                examples = self._examples(x)
                targets, weight = self._targets(examples, y, sample_weight, learn=True)
                rows, held_out = _split(len(examples.lengths), share)
                validation = None
                if share:
                    held_out = held_out[first_rows(validation_steps, held_out_size)]
                    validation = self._fed(self._batches(examples, targets, weight, held_out_size, held_out))
                if class_weight is not None:
                    check_one_weight(weight)
                    weight, class_weight = self.weigh_classes(targets, class_weight), None
                seed = self._draw_seed() if shuffle else None
                batches = self._batches(examples, targets, weight, batch_size, rows, shuffle_seed=seed, training=True)
                data = self._fed(batches)
            else:
                data, batches, validation = self._streamed(x, y, sample_weight, self.needs_targets), x, None
                _check_batch_size("batch_size", batch_size)
                if share:
                    raise ValueError("`validation_split` needs arrays or raw text. Received: streamed data")
                if class_weight is not None:
                    data, class_weight = self.weigh_stream(data, self.weights_of_classes(class_weight))
            if isinstance(batches, OwnBatches):
                callbacks = _with_callback(callbacks, _FollowEpochs(batches))
            if validation_data is not None:
                if not isinstance(validation_data, (tuple, list, dict)):
                    _check_batch_size("validation_batch_size", validation_batch_size)
                validation = self._validation(validation_data, held_out_size, validation_steps)
            for callback in self.lay_schedule(batches, steps_per_epoch, epochs, initial_epoch):
                callbacks = _with_callback(callbacks, callback)
        self._initial_epoch = None  # Else Keras starts with the epoch that an earlier fit's BackupAndRestore resumed.
        return super().fit(
            data,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation,
            shuffle=shuffle and self._is_shuffled_by_keras(x),
            class_weight=class_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_freq=validation_freq,
        )

    def _is_shuffled_by_keras(self, x: Any) -> bool:
        # Each of several workers would draw an order of its own, and all take their part of one.
        return isinstance(x, keras.utils.PyDataset) and not (isinstance(x, OwnBatches) or self._is_one_of_several)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Like `keras.Model.evaluate`, but also for raw text; see the class and `fit`.

        For in-memory data, `steps` means that many batches of the first examples.
        """
        if not kwargs:  # Keras passes an extra argument when `fit` evaluates ready batches.
            if self._is_columns(x):
                examples = self._examples(x)
                targets, weight = self._targets(examples, y, sample_weight)
                x = self._fed(self._batches(examples, targets, weight, batch_size, first_rows(steps, batch_size)))
            else:
                x = self._streamed(x, y, sample_weight, self.needs_targets)
                _check_batch_size("batch_size", batch_size)
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks, "return_dict": return_dict, **kwargs}
        with weights_kept(), self.states_back():
            return super().evaluate(x, **options)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Like `keras.Model.train_on_batch`, for ready arrays; a schedule needs `total_steps`, as there is no `fit`."""
        batch = self._given_batch(x, y, sample_weight)
        if self.optimizers_following_fit():
            raise ValueError(
                "`optimizer` must have a learning rate, or a schedule with total_steps, outside of `fit`: "
                "compile with one. Received: a schedule with total_steps=None"
            )
        if class_weight is not None:
            check_one_weight(sample_weight)
            batch = self.weigh_batch(self.weights_of_classes(class_weight), batch)
        return super().train_on_batch(*batch, return_dict=return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Like `keras.Model.test_on_batch`, for ready arrays."""
        with self.states_back():
            return super().test_on_batch(*self._given_batch(x, y, sample_weight), return_dict=return_dict)

    def _given_batch(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
        batch = self.ready_batch((x, y, sample_weight))
        if y is None:
            raise ValueError("`y` must be given. Received: y=None")
        return batch

    def predict_on_batch(self, x: Any) -> Any:
        """Like `keras.Model.predict_on_batch`, for ready arrays."""
        arrays, *_ = self._checked_parts((x,))
        with self.states_back():
            return super().predict_on_batch(arrays)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Like `keras.Model.predict`, but also for raw text; see the class. Returns logits in the order of `x`.

        `batch_size=None` means 32; unless `steps` is given, batches of short texts then grow to the largest multiple of
        32 that has at most 2,048 tokens, padding included. If each shape compiles a program, a smaller batch is filled
        up to the next power of two, at most `batch_size`; what fills it is not returned. On a TPU batches do not grow:
        all are filled up to `batch_size`.
        """
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        if not self._is_columns(x):
            if isinstance(x, dict):  # Arrays that are fed unsorted.
                data, options["batch_size"] = x, batch_size
            else:
                data = self._streamed(inputs_alone(x))
                _check_batch_size("batch_size", batch_size)
                refuse_bare_pairs(x, self)
            return self.predict_fed(data, **options)
        most_tokens = self.most_predicted_tokens if batch_size is None and steps is None else None
        examples, rows = self._examples(x), first_rows(steps, batch_size)
        few = bool(self.static_lengths)
        batches = self._batches(examples, None, None, batch_size, rows, most_tokens=most_tokens, few_sizes=few)
        return batches.restore_order(self.predict_fed(self._fed(batches), **options))

    def predict_fed(self, data: Any, **options: Any) -> Any:
        """Like `keras.Model.predict`, for ready batches."""
        with weights_kept(), self.states_back():
            return super().predict(data, **options)

    def batches(
        self, x: Any, y: Any = None, batch_size: int | None = None, sample_weight: Any = None, shuffle: bool = True
    ) -> Any:
        """Return the batches of similar length that `fit` makes, for another model's `fit` and `evaluate`.

        An example is `keras.distillation.Distiller`, which trains the task as its student; the teacher may be an
        `ensemble`. The distiller ignores sample weights, so for a token classifier padding and unlabelled tokens
        count.

        Args:
            x: Raw text or ready arrays, as for `fit`.
            y: Targets as for `fit`, or None if not needed. Class names need `class_names`: they are not learned.
            batch_size: As in `fit`.
            sample_weight: As in `fit`.
            shuffle: True shuffles anew each epoch, from Keras' random seed; False sorts by length, for `evaluate`.

        Returns:
            A dataset of known length of `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`.

        Example:

        ```python
        # Pass the loss as an object: Keras 3.15 uses its name, the default, as a loss over logits.
        soft = keras.distillation.LogitsDistillation(temperature=2.0, loss=keras.losses.KLDivergence())
        distiller = keras.distillation.Distiller(teacher, student, soft, student_loss_weight=0.5)
        batches = student.batches(texts, labels)
        schedule = kbz.WarmupPolynomialDecay(1e-4, total_steps=3 * len(batches))
        distiller.compile(kbz.AdamW(schedule), loss=student.loss)
        distiller.fit(batches, epochs=3, shuffle=False)  # The batches shuffle themselves.
        student.save_to_preset("small")
        ```
        """
        if not self._is_columns(x):
            raise ValueError(f"`x` must be raw text or ready arrays in memory. Received: x of type {type(x).__name__}")
        if y is None and sample_weight is not None:
            raise ValueError("`sample_weight` needs `y`. Received: sample_weight without y")
        examples = self._examples(x)
        targets, weight = (None, None) if y is None else self._targets(examples, y, sample_weight)
        seed = self._draw_seed() if shuffle else None
        return self._fed(self._batches(examples, targets, weight, batch_size, shuffle_seed=seed, training=shuffle))

    def undone_where_refused(self) -> AbstractContextManager[Any]:
        """Context in which `fit` reads its arguments; on an error, a task forgets what it learned from them."""
        return nullcontext()


class _FollowEpochs(keras.callbacks.Callback):
    """Pass the epoch number, which sets the order, to the batches, so that a resumed run continues unchanged."""

    def __init__(self, batches: OwnBatches) -> None:
        super().__init__()
        self.batches = batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches.epoch = epoch


def _split(count: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the examples to train on and, if there is a share, of those at the end to hold out."""
    split = int(count * (1 - share))
    if share and not 0 < split < count:
        raise ValueError(
            "`validation_split` must leave examples on both sides. "
            f"Received: validation_split={share} of {count} examples"
        )
    rows = np.arange(count)
    return rows[:split], rows[split:]


def _check_batch_size(name: str, batch_size: int | None) -> None:
    if batch_size is not None:
        raise ValueError(f"`{name}` must be None if the data are batches already. Received: {name}={batch_size}")


def _with_callback(callbacks: Any, callback: keras.callbacks.Callback) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return keras.callbacks.CallbackList([callbacks, callback])  # The user's list is not changed.
    given = [] if callbacks is None else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [*given, callback]

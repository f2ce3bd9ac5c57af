"""`fit`, `evaluate` and `predict` on raw text."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import keras
import numpy as np

from keras_bert_zoo.checks import check_trainable
from keras_bert_zoo.layers.passes import weights_kept
from keras_bert_zoo.models.batch_making import MakesBatches, first_rows
from keras_bert_zoo.models.compiled_steps import CompilesSteps
from keras_bert_zoo.models.scheduling import LaysSchedules
from keras_bert_zoo.models.sending import SendsAhead
from keras_bert_zoo.models.steps import RunsItsSteps
from keras_bert_zoo.models.streaming import inputs_alone, refuse_bare_pairs
from keras_bert_zoo.models.tracing import TracesOnce
from keras_bert_zoo.models.workers import TrainsOnWorkers
from keras_bert_zoo.text.batching import TOKENS_OF_A_BATCH, OwnBatches


class FedModel(
    MakesBatches, LaysSchedules, TrainsOnWorkers, TracesOnce, RunsItsSteps, SendsAhead, CompilesSteps, keras.Model
):
    """A model over a backbone that `fit`, `evaluate` and `predict` feed from `x`, which is

    - raw text, where there is a preprocessor: a list of strings, or for pairs a tuple of two lists;
    - ready arrays: a dict of `token_ids`, `segment_ids` and `padding_mask`, int `[examples, length]`;
    - a batched `tf.data.Dataset` of either, with the targets; it streams as it is;
    - any other data set that Keras takes, of ready batches; each is checked as it streams.

    The first two are tokenised once and put into batches of similar length. Predictions come in the order given.
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
        """As `keras.Model.fit`, on raw text too; see the class.

        Args:
            x: Data.
            y: Targets of what is at hand, as the task says; part of what streams.
            batch_size: Examples a batch of what is at hand; None is 32.
            epochs: Number of the last epoch.
            verbose: As Keras'.
            callbacks: Keras' or your own.
            validation_split: Share of what is at hand, the last of it, that is held out.
            validation_data: `(x, y)` or `(x, y, sample_weight)`, or what streams.
            shuffle: True draws the batches anew each epoch, from Keras' random seed; False sorts them by length.
            class_weight: From classes, by name or number, to weights; excludes `sample_weight`.
            sample_weight: A weight an example.
            initial_epoch: Epochs behind the model.
            steps_per_epoch: Batches an epoch of what streams; what is at hand knows them.
            validation_steps: Batches of the held-out part, before it is sorted.
            validation_batch_size: As `batch_size`.
            validation_freq: As Keras'.

        Returns:
            Keras' `History`.

        Raises:
            ValueError: An argument is not as described, before anything compiles; of what streams as it comes.
        """
        with self.undone_where_refused():
            if not 0 <= validation_split < 1:
                raise ValueError(
                    f"`validation_split` must be in [0, 1). Received: validation_split={validation_split!r}"
                )
            for variable in self.trainable_variables:
                check_trainable(variable.dtype)
            self.check_optimizer()
            # Keras would go on within one epoch's batches, under which the next one's are drawn.
            if steps_per_epoch is not None and (self._is_columns(x) or isinstance(x, OwnBatches)):
                raise ValueError(
                    "`steps_per_epoch` must be None where the batches know their epochs. "
                    f"Received: steps_per_epoch={steps_per_epoch}"
                )
            if self._is_columns(x):
                examples = self._examples(x)
                targets, weight = self._targets(examples, y, sample_weight, learn=True)
                rows = np.arange(len(examples.lengths))
                if validation_split and validation_data is None:
                    split = int(len(rows) * (1 - validation_split))
                    if not 0 < split < len(rows):
                        raise ValueError(
                            "`validation_split` must leave examples on both sides. "
                            f"Received: validation_split={validation_split} of {len(rows)} examples"
                        )
                    size = validation_batch_size or batch_size
                    held_out = self._batches(
                        examples, targets, weight, size, rows[split:][first_rows(validation_steps, size)]
                    )
                    rows = rows[:split]
                if class_weight is not None:
                    if weight is not None:
                        raise ValueError("`class_weight` and `sample_weight` exclude each other. Received: both")
                    weight = self.weigh_classes(targets, class_weight)
                seed = self._draw_seed() if shuffle else None
                batches = self._batches(examples, targets, weight, batch_size, rows, seed, training=True)
                callbacks = _with_callback(callbacks, _FollowEpochs(batches))
                data, class_weight = self._fed(batches), None
            else:
                _check_batch_size(batch_size)
                data = self._streamed(x, y, sample_weight)
                if class_weight is not None:
                    weights = self.weigh_classes(np.arange(getattr(self, "num_classes", 0)), class_weight)
                    data, class_weight = self._weigh_stream(data, weights)
                if isinstance(x, OwnBatches):
                    callbacks = _with_callback(callbacks, _FollowEpochs(x))
            if validation_data is not None:
                validation = self._validation(validation_data, validation_batch_size or batch_size, validation_steps)
            elif validation_split and self._is_columns(x):
                validation = self._fed(held_out)
            elif validation_split:
                raise ValueError("`validation_split` needs arrays or raw text. Received: a data set that streams")
            else:
                validation = None
            self.lay_schedule(batches if self._is_columns(x) else x, steps_per_epoch, epochs, initial_epoch)
        return super().fit(
            data,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation,
            shuffle=False,
            class_weight=class_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_freq=validation_freq,
        )

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
        """As `keras.Model.evaluate`, on raw text too; see the class and `fit`.

        `steps` batches of what is at hand are those of its first examples.
        """
        if not kwargs:  # Keras passes one where `fit` evaluates batches that are made already.
            if self._is_columns(x):
                examples = self._examples(x)
                targets, weight = self._targets(examples, y, sample_weight)
                x = self._fed(self._batches(examples, targets, weight, batch_size, first_rows(steps, batch_size)))
            else:
                _check_batch_size(batch_size)
                x = self._streamed(x, y, sample_weight)
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks, "return_dict": return_dict, **kwargs}
        with weights_kept(), self._weights_back():
            return super().evaluate(x, **options)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """As `keras.Model.train_on_batch`, on ready arrays; a schedule must have its steps, as there is no `fit`."""
        batch = self._given_batch(x, y, sample_weight)
        if self.schedule_of_fit() is not None:
            raise ValueError(
                "`optimizer` must have a rate, or a schedule with total_steps, where `fit` does not lay it over its "
                "run: compile with one. Received: a schedule with total_steps=None"
            )
        return super().train_on_batch(*batch, class_weight=class_weight, return_dict=return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """As `keras.Model.test_on_batch`, on ready arrays."""
        return super().test_on_batch(*self._given_batch(x, y, sample_weight), return_dict=return_dict)

    def _given_batch(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
        batch = self.ready_batch((x, y, sample_weight))
        if y is None:
            raise ValueError("`y` must be given. Received: y=None")
        return batch

    def predict_on_batch(self, x: Any) -> Any:
        """As `keras.Model.predict_on_batch`, on ready arrays."""
        self.check_inputs(x)
        return super().predict_on_batch(x)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """As `keras.Model.predict`, on raw text too; see the class. Returns logits in the order of `x`.

        `batch_size=None` is 32, and without `steps` more of what is short: as many times 32 as come to 2,048 tokens.
        """
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        if not self._is_columns(x):
            if isinstance(x, dict):  # Arrays that are fed as they come.
                data, options["batch_size"] = x, batch_size
            else:
                _check_batch_size(batch_size)
                data = self._streamed(inputs_alone(x))
                refuse_bare_pairs(x, self)
            return self.predict_fed(data, **options)
        most_tokens = self.most_predicted_tokens if batch_size is None and steps is None else None
        examples, rows = self._examples(x), first_rows(steps, batch_size)
        batches = self._batches(examples, None, None, batch_size, rows, most_tokens=most_tokens)
        return batches.restore_order(self.predict_fed(self._fed(batches), **options))

    def predict_fed(self, data: Any, **options: Any) -> Any:
        """As `keras.Model.predict`, of batches that are made already."""
        with weights_kept(), self._weights_back():
            return super().predict(data, **options)

    @contextmanager
    def _weights_back(self) -> Iterator[None]:
        """On JAX Keras takes a model its weights for a pass, and gives them back at its end: after an error, too."""
        if keras.backend.backend() != "jax":
            yield
            return
        self.jax_state_sync()  # In a callback of `fit`, which has them.
        before = [(variable, variable.value) for variable in self.variables]
        try:
            yield
        except BaseException:
            self.jax_state_sync()
            self._jax_state = None
            for variable, value in before:
                if variable._value is None:  # The first batch did not come to its end.
                    variable._value = value
            raise

    def batches(
        self, x: Any, y: Any = None, batch_size: int | None = None, sample_weight: Any = None, shuffle: bool = True
    ) -> Any:
        """What `fit` makes of its arguments, batches of similar length, for another model's `fit` and `evaluate`.

        Such as those of `keras.distillation.Distiller`, which trains the task as its student; the teacher may be an
        `ensemble`. The distiller leaves weights aside, so that for a token classifier padding and unlabelled tokens
        count.

        Args:
            x: Raw text or ready arrays, as for `fit`.
            y: Targets as for `fit`, or None where none are needed. Names need `class_names`: none are learned.
            batch_size: As in `fit`.
            sample_weight: As in `fit`.
            shuffle: True draws the batches anew each epoch, from Keras' random seed; False sorts them, for `evaluate`.

        Returns:
            A data set of known length of `(inputs,)`, `(inputs, targets)` or `(inputs, targets, weights)`.

        Example:

        ```python
        # The loss as an object: Keras 3.15 takes its name, the default, for one over logits.
        soft = keras.distillation.LogitsDistillation(temperature=2.0, loss=keras.losses.KLDivergence())
        distiller = keras.distillation.Distiller(teacher, student, soft, student_loss_weight=0.5)
        batches = student.batches(texts, labels)
        schedule = kbz.WarmupPolynomialDecay(1e-4, total_steps=3 * len(batches))
        distiller.compile(kbz.AdamW(schedule), loss=student.loss)
        distiller.fit(batches, epochs=3, shuffle=False)  # They are drawn anew already.
        student.save_to_preset("small")
        ```
        """
        if not self._is_columns(x):
            raise ValueError(f"`x` must be raw text or ready arrays at hand. Received: x of type {type(x).__name__}")
        if y is None and sample_weight is not None:
            raise ValueError("`sample_weight` needs `y`. Received: sample_weight without y")
        examples = self._examples(x)
        targets, weight = (None, None) if y is None else self._targets(examples, y, sample_weight)
        seed = self._draw_seed() if shuffle else None
        return self._fed(self._batches(examples, targets, weight, batch_size, shuffle_seed=seed, training=shuffle))

    def undone_where_refused(self) -> AbstractContextManager[Any]:
        """Within, `fit` reads what it was given; a task that learns from that forgets it again on an error."""
        return nullcontext()

    def _weigh_stream(self, data: Any, weights: np.ndarray) -> tuple[Any, dict[int, float] | None]:
        """Batches with a weight for each class, or with the `class_weight` that Keras shall make them of."""
        return data, dict(enumerate(weights.tolist()))


class _FollowEpochs(keras.callbacks.Callback):
    """Tells the batches the number of the epoch, on which their order depends; a resumed run goes on as it would."""

    def __init__(self, batches: OwnBatches) -> None:
        super().__init__()
        self.batches = batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.batches.epoch = epoch


def _check_batch_size(batch_size: int | None) -> None:
    if batch_size is not None:
        raise ValueError(f"`batch_size` must be None where `x` is made of batches. Received: batch_size={batch_size}")


def _with_callback(callbacks: Any, callback: keras.callbacks.Callback) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return keras.callbacks.CallbackList([callbacks, callback])  # The user's own stays as it is.
    given = [] if callbacks is None else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [*given, callback]

"""Set-up of the optimizer for a run of `fit`: a check of its weights, and the schedule's number of steps."""

from contextlib import nullcontext
from typing import Any

import keras

from keras_bert_zoo.training import WarmupPolynomialDecay
from keras_bert_zoo.training.optimizer import BertOptimizer


class LaysSchedules:
    """Mixin for a `keras.Model` whose schedule takes its `total_steps` from `fit`."""

    optimizer: Any
    trainable_variables: Any
    train_function: Any

    _steps_laid: list[int] | None = None
    """The schedules' `total_steps` in the compiled step."""

    def _optimizer_within(self) -> Any:
        return getattr(self.optimizer, "inner_optimizer", self.optimizer)

    def check_optimizer(self) -> None:
        """Raise a `ValueError` for weights the optimizer was not built for; Keras' error prints a whole variable."""
        optimizer = self._optimizer_within()
        if optimizer is None or not optimizer.built:
            return
        _check_known(self.trainable_variables, optimizer._trainable_variables, "trainable now")
        if keras.backend.backend() == "jax":  # Its step has all that the optimizer was built for.
            _check_known(optimizer._trainable_variables, self.trainable_variables, "no longer trainable")

    def optimizers_following_fit(self) -> list[Any]:
        """Return the optimizers, of a `MultiOptimizer` perhaps several, whose schedules follow `fit`."""
        optimizers = [self._optimizer_within()]
        if isinstance(optimizers[0], keras.optimizers.MultiOptimizer):
            (several,) = optimizers
            if not several.built:  # Only then does it know the optimizers that a function chooses or makes.
                strategy = getattr(self, "distribute_strategy", None)  # TensorFlow's.
                with nullcontext() if strategy is None else strategy.scope():
                    self.optimizer.build(self.trainable_variables)
            optimizers = several.optimizers
        return [each for each in optimizers if _follows_fit(getattr(each, "_learning_rate", None))]

    def lay_schedule(
        self, data: Any, steps_per_epoch: int | None, epochs: int, initial_epoch: int
    ) -> list[keras.callbacks.Callback]:
        """Set the `total_steps` of the schedules that leave them to `fit`, and return what this `fit` must call."""
        optimizers = self.optimizers_following_fit()
        if not optimizers:
            return []
        if steps_per_epoch is None:
            steps_per_epoch = _count_batches(data)
        if steps_per_epoch is None:
            raise ValueError(
                "`steps_per_epoch` must be given if the data set has no known length; or compile with a schedule that "
                "has total_steps. Received: steps_per_epoch=None"
            )
        is_scaled = self.optimizer is not self._optimizer_within()
        for optimizer in optimizers:
            _restart(optimizer, steps_per_epoch, epochs, initial_epoch, is_scaled)
        # The numbers are part of a compiled step; another model with such a schedule may have changed it since.
        laid = [optimizer._learning_rate.total_steps for optimizer in optimizers]
        if self._steps_laid != laid:
            self._steps_laid = laid
            self.train_function = None
        return [] if is_scaled else [_RepeatsEpoch(self, steps_per_epoch)]


def _check_known(variables: list[Any], known: list[Any], change: str) -> None:
    """Raise a `ValueError` for the first variable that is not known; `change` says what it is since `compile`."""
    numbers = set(map(id, known))
    other = next((each for each in variables if id(each) not in numbers), None)
    if other is not None:
        raise ValueError(
            f"`compile` must be called again after the trainable weights change. Received: {other.path}, {change}"
        )


class _RepeatsEpoch(keras.callbacks.Callback):
    """Count from the beginning of an epoch in which Keras' `BackupAndRestore(save_freq=…)` saved: it is repeated.

    With loss scaling the restored count stays, as in `_restart`.
    """

    def __init__(self, fitted: Any, steps_per_epoch: int) -> None:
        super().__init__()
        self._fitted = fitted  # Keras sets no `model` in a user's `CallbackList`.
        self._steps_per_epoch = steps_per_epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._fitted._initial_epoch:  # None unless a callback restored it.
            for optimizer in self._fitted.optimizers_following_fit():
                if not epoch:
                    _begin_anew(optimizer)  # The callback has restored it since.
                optimizer._iterations.assign(epoch * self._steps_per_epoch)


def _follows_fit(rate: Any) -> bool:
    return isinstance(rate, WarmupPolynomialDecay) and rate.follows_fit


def _restart(optimizer: Any, steps_per_epoch: int, epochs: int, initial_epoch: int, is_scaled: bool) -> None:
    """Set an optimizer's count of steps and the `total_steps` of its schedule."""
    # The run restarts the step count, which includes the epochs before `initial_epoch`: an earlier call trained
    # them, or a callback is about to restore them.
    # `_iterations` counts gradients, as do schedules in Keras' optimizers; in ours, schedules count updates.
    if not initial_epoch:
        _begin_anew(optimizer)
    if initial_epoch and optimizer.use_ema and not int(optimizer._iterations):
        raise ValueError(
            "`initial_epoch` must be 0 for a new optimizer that averages weights and has a schedule without "
            f"total_steps, as the averages would begin at zero. Received: initial_epoch={initial_epoch}"
        )
    # With loss scaling, a restored count may be lower: steps whose gradients overflowed were not updates.
    is_restored = initial_epoch and is_scaled and int(optimizer._iterations)
    if not is_restored:
        optimizer._iterations.assign(initial_epoch * steps_per_epoch)
    total_steps = steps_per_epoch * epochs
    if isinstance(optimizer, BertOptimizer):
        total_steps = max(1, total_steps // (optimizer.gradient_accumulation_steps or 1))
    optimizer._learning_rate.total_steps = total_steps


# Keras' optimizers that correct moments by the step count, and what they call these moments.
_CORRECTED = (
    keras.optimizers.Adam,
    keras.optimizers.Adamax,
    keras.optimizers.Lamb,
    keras.optimizers.Muon,
    keras.optimizers.Nadam,
)
_MOMENTS = ("_momentums", "_velocities", "_velocity_hats", "_m", "_u", "momentums", "adam_velocities")


def _begin_anew(optimizer: Any) -> None:
    """Forget what an earlier run has left: gradients of which no update came, and moments corrected by the step count.

    Keras would add the gradients to the first update. Corrected by a count that restarts, old moments would give
    updates of a wrong size.
    """
    _reset(getattr(optimizer, "_accumulated_gradients", ()))
    if not optimizer.built:
        return
    if isinstance(optimizer, _CORRECTED) and getattr(optimizer, "bias_correction", True):
        for moments in _MOMENTS:
            _reset(getattr(optimizer, moments, ()))
        if isinstance(optimizer, keras.optimizers.Nadam):
            optimizer._u_product.assign(1.0)
    if isinstance(optimizer, keras.optimizers.ScheduleFreeAdamW):
        _reset(optimizer._velocities)
        for momentum, variable in zip(optimizer._momentums, optimizer._trainable_variables, strict=True):
            if momentum is not None:  # It averages weights, not gradients.
                momentum.assign(variable.value)


def _reset(variables: Any) -> None:
    for variable in variables:
        if variable is not None:  # None for float8 scales.
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))


def _count_batches(data: Any) -> int | None:
    try:
        return data.num_batches if isinstance(data, keras.utils.PyDataset) else len(data)
    except TypeError:
        return None

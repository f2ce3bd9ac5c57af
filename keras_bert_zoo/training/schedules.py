"""Learning-rate schedules."""

import math
from numbers import Integral, Real
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then polynomial decay to zero (google-research/bert, optimization.py).

    As in the original, the decay is counted from step 0: after `warmup * total_steps` steps the rate is
    `learning_rate * (1 - step / total_steps) ** power`. A step is an update. With Keras' own optimizers it is a batch,
    even if an update takes several.

    Args:
        learning_rate: The peak.
        warmup: Share of the steps spent warming up, in [0, 1).
        total_steps: Number of steps to zero. If None, the `fit` of a keras_bert_zoo task sets it: each `fit` restarts
            the schedule, and the moments of Adam, AdamW and LAMB if they are bias-corrected.
        power: 1 is BERT's and LAMB's linear decay; NVIDIA pre-trains with LAMB and 0.5 (DeepLearningExamples,
            schedulers.py).

    Raises:
        ValueError: An argument is invalid, or the rate is read, such as `optimizer.learning_rate` of a new task,
            before `fit` has set the `total_steps` that were None.
    """

    def __init__(
        self,
        learning_rate: float,
        warmup: float = 0.1,
        total_steps: int | None = None,
        power: float = 1.0,
    ) -> None:
        super().__init__()
        for name, value in {"learning_rate": learning_rate, "warmup": warmup, "power": power}.items():
            if not isinstance(value, Real):  # NumPy's numbers are also `Real`.
                raise ValueError(f"`{name}` must be a number. Received: {name}={value!r}")
        if not (learning_rate > 0 and math.isfinite(learning_rate)):
            raise ValueError(f"`learning_rate` must be positive and finite. Received: learning_rate={learning_rate!r}")
        if not 0 <= warmup < 1:
            raise ValueError(f"`warmup` must be a number in [0, 1). Received: warmup={warmup!r}")
        is_count = isinstance(total_steps, Integral) and not isinstance(total_steps, bool)
        if total_steps is not None and not (is_count and total_steps >= 1):
            raise ValueError(f"`total_steps` must be a positive integer. Received: total_steps={total_steps!r}")
        if not power > 0:
            raise ValueError(f"`power` must be positive. Received: power={power!r}")
        self.learning_rate = learning_rate
        self.warmup = warmup
        self.total_steps = total_steps
        self.power = power
        self.follows_fit = total_steps is None

    def __call__(self, step: Any) -> Any:
        if self.total_steps is None:
            raise ValueError(
                "`total_steps` must be given outside the `fit` of a keras_bert_zoo task. Received: total_steps=None"
            )
        step = ops.cast(step, "float32")
        # Not `maximum`, whose 0 PyTorch would copy to the device in each step.
        rate = self.learning_rate * ops.relu(1.0 - step / self.total_steps) ** self.power
        warmup_steps = int(self.total_steps * self.warmup)
        if not warmup_steps:
            return rate
        return ops.where(step < warmup_steps, self.learning_rate * step / warmup_steps, rate)

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "warmup": self.warmup,
            "total_steps": None if self.follows_fit else self.total_steps,
            "power": self.power,
        }

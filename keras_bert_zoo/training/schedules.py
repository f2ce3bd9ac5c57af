"""Learning-rate schedules."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate, python_number


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
            the schedule and the moments that optimizers correct by the number of steps, and drops gradients that were
            accumulated without an update.
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
        learning_rate, warmup, power = map(python_number, (learning_rate, warmup, power))
        total_steps = python_number(total_steps)
        check_positive(learning_rate=learning_rate, power=power)
        check_rate(warmup=warmup)
        if total_steps is not None:
            check_positive_int(total_steps=total_steps)
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

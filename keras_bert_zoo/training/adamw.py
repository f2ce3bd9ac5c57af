"""The AdamW that BERT is trained with."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.checks import check_flag
from keras_bert_zoo.training.optimizer import BertOptimizer

# On PyTorch `keras.optimizers.AdamW(...)` creates a subclass that updates all variables in one call. Deriving from that
# class keeps this; elsewhere it is `keras.optimizers.AdamW` itself. `__init__` is not called: it would create a
# variable, which would start the backend before its devices can be configured.
_KerasAdamW = type(keras.optimizers.AdamW.__new__(keras.optimizers.AdamW))


@dataclass
class _Grouped:
    """A class of its own, as Keras would search a list for variables."""

    variables: Any
    first: Any
    groups: list[Any]


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class AdamW(BertOptimizer, _KerasAdamW):  # type: ignore[misc, valid-type]
    """The AdamW that BERT was trained with (google-research/bert, optimization.py; Devlin et al. 2019, A.2).

    It differs from `keras.optimizers.AdamW` in three ways: moments are not bias-corrected, weight decay excludes biases
    and LayerNorm, and gradients are clipped to a global norm of 1. On several replicas that is the norm of the summed
    gradient. `gradient_accumulation_steps`, which Keras describes, also works there. A schedule counts updates.

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Decay, multiplied by the learning rate as in the original.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        global_clipnorm: Largest global norm of the gradients; None to leave them unclipped, or to use Keras' `clipnorm`
            or `clipvalue`.
        bias_correction: If True, correct the moments as Kingma and Ba 2015 do at the end of section 2, and as Keras
            does. PyTorch's AdamW, which transformers uses, adds epsilon after the correction, not before it.
    """

    _grouped: _Grouped | None = None

    def __init__(
        self,
        learning_rate: Any = 3e-5,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        global_clipnorm: float | None = 1.0,
        bias_correction: bool = False,
        name: str = "adamw",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            global_clipnorm=global_clipnorm,
            name=name,
            **kwargs,
        )
        check_flag(bias_correction=bias_correction)
        self.bias_correction = bias_correction

    # TensorFlow and PyTorch have kernels for the formula, which make one pass over memory. Keras makes a dozen on
    # TensorFlow and some thirty on PyTorch.

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, "float32")
        if self._updates_in("torch"):
            rate = rate * self._correction() if self.bias_correction else rate
            self._update_in_torch(grads, trainable_variables, rate)
            return
        # Keras corrects. Dividing beforehand leaves m / (sqrt(v) + epsilon), on every backend and under every strategy.
        rate = rate if self.bias_correction else rate / self._correction()
        super()._backend_update_step(grads, trainable_variables, rate)

    def _correction(self) -> Any:
        """Return the factor that bias correction applies to the learning rate."""
        first, second = self._corrections()
        return ops.sqrt(second) / first

    def _updates_in(self, backend: str) -> bool:
        return keras.backend.backend() == backend and not self.amsgrad

    def _apply_weight_decay(self, variables: Any) -> None:
        # PyTorch's kernel multiplies decay by the rate that it gets, which with bias correction is not the schedule's.
        # On TensorFlow decay is part of the step.
        by_kernel = self._updates_in("torch") and not self.bias_correction
        by_keras = not (by_kernel or self._updates_in("tensorflow"))
        if by_keras and any(map(self._use_weight_decay, variables)):  # The PyTorch version accepts no empty list.
            super()._apply_weight_decay(variables)

    def _update_in_torch(self, grads: Any, variables: Any, rate: Any) -> None:
        import torch
        from torch.optim.adamw import adamw

        from keras_bert_zoo.torch_sending import numbers_left_alone

        decay = 0.0 if self.bias_correction else self.weight_decay or 0.0
        # The kernel corrects the moments by the number of steps; after so many the correction is 1.
        steps = torch.full((), 1e9, dtype=torch.float32, device=rate.device)
        for is_decayed, places, values, momentums, velocities in self._groups(variables):
            with torch.no_grad(), numbers_left_alone():
                for value in values:  # The kernel ignores the order of dimensions in memory.
                    if not value.is_contiguous():
                        value.data = value.data.contiguous()
                adamw(
                    values,
                    [grads[i].to(value.dtype).contiguous() for i, value in zip(places, values, strict=True)],
                    momentums,
                    velocities,
                    [],
                    [steps] * len(places),
                    fused=True,
                    amsgrad=False,
                    beta1=self.beta_1,
                    beta2=self.beta_2,
                    lr=rate,
                    weight_decay=decay if is_decayed else 0.0,
                    eps=self.epsilon,
                    maximize=False,
                )

    def _groups(self, variables: Any) -> Any:
        """Return two groups, with and without decay: indices in the list, values and moments.

        Values and moments change in place, so the groups are cached for a list of variables: a lookup takes 10 us for
        each of two hundred.
        """
        first = variables[0].value if variables else None  # This is another tensor within `stateless_apply`.
        before = self._grouped
        if before is None or before.first is not first or [*map(id, variables)] != [*map(id, before.variables)]:
            groups: list[Any] = []
            for is_decayed in (True, False):
                places = [i for i, each in enumerate(variables) if self._use_weight_decay(each) == is_decayed]
                indices = [self._get_variable_index(variables[i]) for i in places]
                moments = ([kind[i].value for i in indices] for kind in (self._momentums, self._velocities))
                groups.append((is_decayed, places, [variables[i].value for i in places], *moments))
            self._grouped = _Grouped(variables, first, groups)
            return groups
        return before.groups

    def exclude_from_weight_decay(self, *args: Any, **kwargs: Any) -> None:
        super().exclude_from_weight_decay(*args, **kwargs)
        self._grouped = None

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if not self._updates_in("tensorflow"):
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        if self.weight_decay and self._use_weight_decay(variable):
            wide = keras.backend.result_type(keras.backend.standardize_dtype(variable.dtype), "float32")
            kept = _kept(tf.cast(self.weight_decay * self.learning_rate, wide), self.iterations)
            variable.assign(variable * tf.cast(kept, variable.dtype))
        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, variable.dtype)
        beta_1, beta_2 = (tf.cast(beta, variable.dtype) for beta in (self.beta_1, self.beta_2))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=tf.pow(beta_1, step),
            beta2_power=tf.pow(beta_2, step),
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bias_correction": self.bias_correction}


def _kept(decay: Any, step: Any) -> Any:
    """Return the factor by which TensorFlow multiplies a weight in this step: 1 - decay, on average over the steps.

    One product makes two passes over memory; Keras, which subtracts a product, makes five. But below 1 float32 has
    steps of 6e-8, so that rounding could change a decay of some 3e-7 by a tenth, for all weights alike. So decay comes
    in grains of 2^-22, which a weight can lose with little rounding. Each step takes one grain more or less, as decided
    by multiples of the golden ratio, which are spread evenly. Subtraction would round each weight's decay: by up to a
    fifth for 3e-7, and to nothing below 3e-8.
    """
    import tensorflow as tf

    grain = 4 * np.finfo(decay.dtype.as_numpy_dtype).epsneg
    turn = tf.cast(tf.cast(step, "int64") * 40503 % 65536, decay.dtype) / 65536  # 40503 / 65536 is 0.618.
    return 1 - tf.floor(decay / grain + turn) * grain

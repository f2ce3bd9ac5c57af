"""What our optimisers share: the gradient that a step takes, and the variables that decay leaves alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.on_cpu import on_cpu
from keras_bert_zoo.sending import numbers_sent


class BertOptimizer(keras.optimizers.Optimizer):
    """A base to put before one of Keras' optimizers, where these differ.

    - Weight decay leaves biases and LayerNorm alone.
    - Clipping acts on the gradient of the whole batch, on one replica and on several; on PyTorch it changes the
      gradients in place, as `torch.nn.utils.clip_grad_norm_` does.
    - `gradient_accumulation_steps` works under a strategy, too, and schedules count the updates.
    """

    def __init__(self, gradient_accumulation_steps: int | None = None, **kwargs: Any) -> None:
        if gradient_accumulation_steps and kwargs.get("use_ema"):
            raise ValueError(
                "`use_ema` and `gradient_accumulation_steps` exclude each other. "
                f"Received: use_ema=True, gradient_accumulation_steps={gradient_accumulation_steps}"
            )
        super().__init__(gradient_accumulation_steps=gradient_accumulation_steps, **kwargs)
        self.exclude_from_weight_decay()

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """As Keras', which forgets what was excluded before: biases and LayerNorm stay so."""
        # Keras searches these in `variable.name`: biases of Dense, and LayerNorm's two.
        super().exclude_from_weight_decay(var_list, ["bias", "beta", "gamma", *(var_names or ())])

    def _use_weight_decay(self, variable: Any) -> bool:
        # A TensorFlow variable's name has those of its layers before it, which may hold the words, too.
        return super()._use_weight_decay(self._keras_variable(variable))

    def _keras_variable(self, variable: Any) -> Any:
        """What the optimizer was built with, of which Keras hands on a replica's share."""
        return self._trainable_variables[self._get_variable_index(variable)]

    def _corrections(self) -> tuple[Any, Any]:
        """What the moments have of their full weight, after so many updates."""
        step = ops.cast(self.iterations + 1, "float32")
        first, second = (1.0 - ops.power(ops.cast(beta, "float32"), step) for beta in (self.beta_1, self.beta_2))
        return first, second

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        with numbers_sent(beside=self._iterations.value):  # Such as one more update.
            super().apply(grads, trainable_variables)

    # --- Clipping

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            # Keras clips on each replica and sums then, which on R replicas clips at R times the norm.
            if tf.distribute.has_strategy() and (replica := tf.distribute.get_replica_context()):
                grads = replica.all_reduce(tf.distribute.ReduceOp.SUM, _dense(grads))
            # Rows that are counted in the step are a dynamic shape to XLA, which Keras uses wherever there is more than
            # a CPU. Keras' own functions leave slices as they are.
            by_rows = self.global_clipnorm and on_cpu(grads)
            grads = [_summed_rows(grad) for grad in grads] if by_rows else _dense(grads)
            if self.global_clipnorm:  # Reads for the norm, where Keras writes the squares, too.
                return _dense(_clipped(grads, self.global_clipnorm))
        if keras.backend.backend() == "torch" and self.global_clipnorm:
            import torch

            from keras_bert_zoo.torch_sending import numbers_left_alone

            # Read once and scaled in place, as PyTorch itself clips. Keras writes the squares and then the gradients
            # anew, arrays as large as the model.
            with numbers_left_alone():
                norm = torch.nn.utils.get_total_norm(grads)
                torch._foreach_mul_(grads, self.global_clipnorm / norm.clamp(min=self.global_clipnorm) + (norm - norm))
            return grads
        return super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # Summed already, to be clipped.

    # --- Accumulation. As in Keras `_iterations` counts gradients, and `iterations` the updates made of them.

    def _get_current_learning_rate(self) -> Any:
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        steps = self.gradient_accumulation_steps
        if not steps:
            super()._backend_apply_gradients(grads, trainable_variables)
            return
        sums = [self._accumulated_gradients[self._get_variable_index(v)] for v in trainable_variables]
        held = self._iterations % steps
        # Each replica sums its own, and they meet once an update: a file saved in between holds the first one's sums.
        # The first gradient overwrites what an update, or a run that broke off, has left.
        for sum_, grad in zip(sums, grads, strict=True):
            grad = ops.cast(ops.convert_to_tensor(grad), sum_.dtype)
            self.assign(sum_, ops.where(held == 0, grad, sum_ + grad))

        def update() -> None:
            mean = self._clip_gradients([sum_ / steps for sum_ in sums])
            self._apply_weight_decay(trainable_variables)
            self._backend_update_step(mean, trainable_variables, self.learning_rate)

        self._update_if(lambda: self._iterations % steps == steps - 1, update)

    def _update_if(self, due: Callable[[], Any], update: Callable[[], None]) -> None:
        """A condition whose branch may be where the replicas meet, or where JAX changes variables."""
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            def across(strategy: Any) -> None:
                apart = tf.distribute.in_cross_replica_context()
                each = partial(strategy.extended.call_for_each_replica, update) if apart else update
                tf.cond(due(), each, lambda: None)

            # Keras branches within each replica, and TensorFlow lets none meet the others from a branch ("merge_call
            # called while defining a new graph"). So they meet first and branch together, as in Keras' loss scaling.
            tf.__internal__.distribute.interim.maybe_merge_call(across, tf.distribute.get_strategy())
        elif keras.backend.backend() == "jax":
            variables = [*self._trainable_variables, *self.variables]
            before = [variable.value for variable in variables]

            def after() -> list[Any]:
                with keras.StatelessScope(list(zip(variables, before, strict=True))) as scope:
                    update()
                return [scope.get_current_value(variable) for variable in variables]

            for variable, value in zip(variables, ops.cond(due(), after, lambda: before), strict=True):
                variable.assign(value)
        elif due():
            update()


def _dense(grads: list[Any]) -> list[Any]:
    import tensorflow as tf

    return [tf.convert_to_tensor(grad) for grad in grads]


def _summed_rows(grad: Any) -> Any:
    """A table's gradient with each row at most once, as TensorFlow gives one for each token; any other as it is.

    A norm over rows that are not summed would be another, and one over the whole table reads what is zero.
    """
    import tensorflow as tf

    if not isinstance(grad, tf.IndexedSlices):
        return grad
    rows, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, grad.dense_shape)


def _clipped(grads: list[Any], most: float) -> list[Any]:
    """Scaled to a norm of at most so much; TensorFlow itself takes gradients of one dtype alone."""
    import tensorflow as tf

    kinds = {grad.dtype for grad in grads}
    if len(kinds) == 1:
        return tf.clip_by_global_norm(grads, most)[0]
    norms = [tf.linalg.global_norm([grad for grad in grads if grad.dtype == kind]) for kind in kinds]
    norm = tf.norm([tf.cast(each, "float32") for each in norms])
    return [tf.clip_by_global_norm([grad], most, use_norm=tf.cast(norm, grad.dtype))[0][0] for grad in grads]

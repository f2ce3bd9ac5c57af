"""What our optimizers share: clipping and accumulation of gradients, and exclusions from weight decay."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.checks import check_positive
from keras_bert_zoo.on_cpu import on_cpu
from keras_bert_zoo.sending import numbers_sent


class BertOptimizer(keras.optimizers.Optimizer):
    """A base class to list before one of Keras' optimizers. It changes the following.

    - Weight decay excludes biases and LayerNorm.
    - Clipping acts on the gradient of the whole batch, on one replica or several; on PyTorch it changes the gradients
      in place, as `torch.nn.utils.clip_grad_norm_` does.
    - `gradient_accumulation_steps` also works under a strategy, and schedules count updates.
    """

    def __init__(self, gradient_accumulation_steps: int | None = None, **kwargs: Any) -> None:
        if kwargs.get("global_clipnorm") is not None:
            check_positive(global_clipnorm=kwargs["global_clipnorm"])
            if other := next((name for name in ("clipnorm", "clipvalue") if kwargs.get(name) is not None), None):
                raise ValueError(
                    f"`global_clipnorm` must be None with `{other}`. "
                    f"Received: global_clipnorm={kwargs['global_clipnorm']}, {other}={kwargs[other]}"
                )
        if gradient_accumulation_steps and kwargs.get("use_ema"):
            raise ValueError(
                "`use_ema` and `gradient_accumulation_steps` exclude each other. "
                f"Received: use_ema=True, gradient_accumulation_steps={gradient_accumulation_steps}"
            )
        super().__init__(gradient_accumulation_steps=gradient_accumulation_steps, **kwargs)
        self._known_count: tuple[Any, int, int] | None = None
        self.exclude_from_weight_decay()

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Like Keras' method, forget earlier exclusions and set new ones, but keep biases and LayerNorm excluded."""
        # Keras searches `variable.name` for these words: Dense's biases, and LayerNorm's two weights.
        super().exclude_from_weight_decay(var_list, ["bias", "beta", "gamma", *(var_names or ())])

    def _use_weight_decay(self, variable: Any) -> bool:
        # A TensorFlow variable's name includes those of its layers, which may also contain these words.
        return super()._use_weight_decay(self._keras_variable(variable))

    def _keras_variable(self, variable: Any) -> Any:
        """Return the variable that the optimizer was built with; Keras passes a replica's part of it."""
        return self._trainable_variables[self._get_variable_index(variable)]

    def _corrections(self) -> tuple[Any, Any]:
        """Return the numbers by which bias correction divides the two moments in this update."""
        step = ops.cast(self.iterations + 1, "float32")
        first, second = (1.0 - ops.power(ops.cast(beta, "float32"), step) for beta in (self.beta_1, self.beta_2))
        return first, second

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        if self.loss_scale_factor is not None and keras.backend.backend() == "tensorflow":
            # Keras divides the gradients, which a table's slices do not allow.
            grads = [grad if grad is None else _dense([grad])[0] for grad in grads]
        counts = keras.backend.backend() == "torch" and self.gradient_accumulation_steps and len(grads)
        count = self._count() if counts else 0
        with numbers_sent(beside=self._iterations.value):  # Such as the count's increment.
            super().apply(grads, trainable_variables)
        if counts:
            value = self._iterations.value
            self._known_count = value, value._version, count + 1

    def finalize_variable_values(self, var_list: Any) -> None:
        if self.use_ema and not int(ops.convert_to_numpy(self._iterations)):
            return  # There are no averages before the first update.
        super().finalize_variable_values(var_list)

    def _overwrite_model_variables_with_average_value(self, trainable_variables: Any) -> None:
        super()._overwrite_model_variables_with_average_value(trainable_variables)
        if keras.backend.backend() == "jax":  # Keras shares the average's array, which the next pass deletes.
            for variable in trainable_variables:
                variable.assign(ops.copy(variable.value))

    # --- Clipping

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            # Keras clips on each replica and then sums, which on R replicas clips at R times the norm.
            if tf.distribute.has_strategy() and (replica := tf.distribute.get_replica_context()):
                grads = replica.all_reduce(tf.distribute.ReduceOp.SUM, _dense(grads))
            # The number of distinct rows is a dynamic shape, which XLA does not have; Keras uses XLA wherever there is
            # more than a CPU. Keras' own functions leave slices as they are.
            by_rows = self.global_clipnorm and on_cpu(grads)
            grads = [_summed_rows(grad) for grad in grads] if by_rows else _dense(grads)
            if self.global_clipnorm:  # This only reads for the norm; Keras writes the squares.
                return _dense(_clipped(grads, self.global_clipnorm))
        if keras.backend.backend() == "torch" and self.global_clipnorm:
            import torch

            from keras_bert_zoo.torch_sending import numbers_left_alone

            # Gradients are read once and scaled in place, as in PyTorch's own clipping. Keras writes the squares and
            # new gradients, arrays as large as the model.
            with numbers_left_alone():
                norm = torch.nn.utils.get_total_norm(grads)
                # norm - norm is 0, or NaN if the norm is infinite: such gradients must be noticed, not become zeros.
                torch._foreach_mul_(grads, self.global_clipnorm / norm.clamp(min=self.global_clipnorm) + (norm - norm))
            return grads
        return super()._clip_gradients(grads)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars  # Already summed for clipping.

    # --- Accumulation. As in Keras, `_iterations` counts gradients and `iterations` counts updates.

    def _count(self) -> int:
        """Return PyTorch's `_iterations` as a number, on which Python branches.

        Reading it waits for a GPU, so it is read again only if anything but `apply` has assigned to it.
        """
        value = self._iterations.value
        if self._known_count is None or self._known_count[0] is not value or self._known_count[1] != value._version:
            self._known_count = value, value._version, int(value)
        return self._known_count[2]

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
        # Each replica sums its own gradients, and the sums are combined once per update: a file saved in between holds
        # the first replica's sums. The first gradient overwrites what an update or an interrupted run has left.
        if keras.backend.backend() == "torch":
            held = self._count() % steps
            _add_up(sums, grads, is_first=held == 0)
        else:
            held = self._iterations % steps
            for sum_, grad in zip(sums, grads, strict=True):
                grad = ops.cast(ops.convert_to_tensor(grad), sum_.dtype)
                self.assign(sum_, ops.where(held == 0, grad, sum_ + grad))

        def update() -> None:
            mean = self._clip_gradients([sum_ / steps for sum_ in sums])
            self._apply_weight_decay(trainable_variables)
            self._backend_update_step(mean, trainable_variables, self.learning_rate)

        self._update_if(lambda: held == steps - 1, update)

    def _update_if(self, due: Callable[[], Any], update: Callable[[], None]) -> None:
        """Call `update` if `due()`, even where the replicas communicate or JAX changes variables in it."""
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            def across(strategy: Any) -> None:
                apart = tf.distribute.in_cross_replica_context()
                each = partial(strategy.extended.call_for_each_replica, update) if apart else update
                tf.cond(due(), each, lambda: None)

            # Keras branches within each replica, and in a branch TensorFlow lets no replica merge with others
            # ("merge_call called while defining a new graph"). So they merge first and branch together, as in Keras'
            # loss scaling.
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


def _add_up(sums: list[Any], grads: list[Any], is_first: bool) -> None:
    """Add PyTorch's gradients to their sums, all by one operation each."""
    import torch

    from keras_bert_zoo.torch_sending import numbers_left_alone

    with torch.no_grad(), numbers_left_alone():
        values = [sum_.value for sum_ in sums]
        grads = [grad.to(value.dtype) for grad, value in zip(grads, values, strict=True)]
        (torch._foreach_copy_ if is_first else torch._foreach_add_)(values, grads)


def _dense(grads: list[Any]) -> list[Any]:
    import tensorflow as tf

    return [tf.convert_to_tensor(grad) for grad in grads]


def _summed_rows(grad: Any) -> Any:
    """Sum by index the rows of a table's gradient, which TensorFlow gives per token; return others unchanged.

    A norm over unsummed rows would be wrong, and one over the whole table would read zeros.
    """
    import tensorflow as tf

    if not isinstance(grad, tf.IndexedSlices):
        return grad
    rows, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, grad.dense_shape)


def _clipped(grads: list[Any], most: float) -> list[Any]:
    """Scale gradients to a norm of at most `most`; TensorFlow's own function accepts only one dtype."""
    import tensorflow as tf

    kinds = {grad.dtype for grad in grads}
    if len(kinds) == 1:
        return tf.clip_by_global_norm(grads, most)[0]
    norms = [tf.linalg.global_norm([grad for grad in grads if grad.dtype == kind]) for kind in kinds]
    norm = tf.norm([tf.cast(each, "float32") for each in norms])
    return [tf.clip_by_global_norm([grad], most, use_norm=tf.cast(norm, grad.dtype))[0][0] for grad in grads]

"""LAMB, for large batches."""

from typing import Any

import keras
from keras import ops

from keras_bert_zoo.training.optimizer import BertOptimizer


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class Lamb(BertOptimizer, keras.optimizers.Lamb):
    """LAMB (You et al. 2019, Algorithm 2): AdamW with the step of each weight matrix rescaled to its norm.

    `w -= learning_rate * ||w|| / ||u|| * u`, where `u = m / (sqrt(v) + epsilon) + weight_decay * w`. As in Algorithm 2,
    both moments are bias-corrected, unlike in the authors' code (google-research/albert, lamb_optimizer.py). As in that
    code, the scaling of norms is the identity, and biases and LayerNorm have neither decay nor the ratio.
    `keras.optimizers.Lamb` applies decay outside the ratio and excludes nothing. Clipping, several replicas and
    `gradient_accumulation_steps` work as in `keras_bert_zoo.AdamW`.

    The query, key and value matrices, which `SelfAttention` stores as one, have separate ratios.

    For another batch size the authors scale the learning rate by the square root of the batch sizes' ratio, and the
    share of warm-up by that ratio (section 4).

    Args:
        learning_rate: A float or a schedule.
        weight_decay: Decay, within the ratio.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        global_clipnorm: Largest global norm of the gradients; None to leave them unclipped, or to use Keras' `clipnorm`
            or `clipvalue`.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        global_clipnorm: float | None = 1.0,
        name: str = "lamb",
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

    def _apply_weight_decay(self, variables: Any) -> None:
        pass  # Part of the update.

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        if keras.backend.backend() == "torch":
            self._update_in_torch(grads, trainable_variables, learning_rate)
        else:
            super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index = self._get_variable_index(variable)
        m, v = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign(m, self.beta_1 * m + (1 - self.beta_1) * gradient)
        self.assign(v, self.beta_2 * v + (1 - self.beta_2) * ops.square(gradient))
        first, second = self._corrections()
        update = ops.cast(m, "float32") / first / (ops.sqrt(ops.cast(v, "float32") / second) + self.epsilon)
        if self._use_weight_decay(variable):
            weight = ops.cast(variable, "float32")
            update = self._adapt(update + (self.weight_decay or 0.0) * weight, weight, variable)
        self.assign_sub(variable, ops.cast(ops.cast(learning_rate, "float32") * update, variable.dtype))

    def _update_in_torch(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        """Apply each operation to all variables at once: one by one, each of two hundred would need thirty."""
        import torch

        from keras_bert_zoo.torch_sending import numbers_left_alone

        values = [variable.value for variable in variables]
        grads = [grad.to(value.dtype) for grad, value in zip(grads, values, strict=True)]
        places = [self._get_variable_index(variable) for variable in variables]
        m, v = ([moments[i].value for i in places] for moments in (self._momentums, self._velocities))
        first, second = self._corrections()
        rate = ops.cast(learning_rate, "float32")
        with torch.no_grad(), numbers_left_alone():
            torch._foreach_mul_(m, self.beta_1)
            torch._foreach_add_(m, grads, alpha=1 - self.beta_1)
            torch._foreach_mul_(v, self.beta_2)
            torch._foreach_addcmul_(v, grads, grads, value=1 - self.beta_2)
            roots = torch._foreach_div([each.float() for each in v], second)
            torch._foreach_sqrt_(roots)
            torch._foreach_add_(roots, self.epsilon)
            updates = torch._foreach_div([each.float() for each in m], first)
            torch._foreach_div_(updates, roots)
            del roots
            decayed = [i for i, variable in enumerate(variables) if self._use_weight_decay(variable)]
            if decayed:
                weights, of_them = [values[i].float() for i in decayed], [updates[i] for i in decayed]
                torch._foreach_add_(of_them, weights, alpha=self.weight_decay or 0.0)
                parts = [3 if self._is_qkv(variables[i]) else 1 for i in decayed]
                matrices, changes = (
                    [matrix for tensor, count in zip(tensors, parts, strict=True) for matrix in tensor.chunk(count, -1)]
                    for tensors in (weights, of_them)
                )
                norms, of_updates = (torch.stack(torch._foreach_norm(each)) for each in (matrices, changes))
                known = (norms > 0) & (of_updates > 0)
                ratios = torch.where(known, norms / torch.where(known, of_updates, 1.0), 1.0)
                torch._foreach_mul_(changes, list(ratios.unbind()))
            torch._foreach_mul_(updates, rate)
            torch._foreach_sub_(values, [update.to(value.dtype) for update, value in zip(updates, values, strict=True)])

    def _is_qkv(self, variable: Any) -> bool:
        return getattr(self._keras_variable(variable), "path", "").endswith("qkv/kernel")

    def _adapt(self, update: Any, weight: Any, variable: Any) -> Any:
        if not self._is_qkv(variable):
            return _trust_ratio(weight, update) * update
        matrices = zip(ops.split(weight, 3, axis=-1), ops.split(update, 3, axis=-1), strict=True)
        return ops.concatenate([_trust_ratio(*pair) * pair[1] for pair in matrices], axis=-1)


def _trust_ratio(weight: Any, update: Any) -> Any:
    """Return `||weight|| / ||update||`, or 1 if one of them is 0."""
    weight_norm, update_norm = (ops.sqrt(ops.sum(ops.square(tensor))) for tensor in (weight, update))
    known = ops.logical_and(weight_norm > 0, update_norm > 0)
    return ops.where(known, weight_norm / ops.where(known, update_norm, 1.0), 1.0)

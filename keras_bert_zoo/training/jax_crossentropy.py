"""Cross-entropy over many classes that keeps only the logits for its gradient; imported on JAX only."""

import jax
import jax.numpy as jnp


def crossentropy(labels: jax.Array, logits: jax.Array) -> jax.Array:
    """Return -log softmax(logits)[label], in float32 at least, and 0 for a label that is not a class.

    By default JAX reuses the exponentials of the sum for the gradient, and XLA writes them to memory in float32:
    0.6 GB per step for 5,120 predictions over 30,592 tokens.

    Args:
        labels: Integers `[predictions]`.
        logits: `[predictions, classes]`.

    Returns:
        `[predictions]`.
    """
    labels, classes = labels.astype("int32"), logits.shape[-1]  # Keras' losses cast them to float32.
    wide = logits.astype(jnp.promote_types(logits.dtype, "float32"))
    shifted = wide - jax.lax.stop_gradient(wide.max(-1, keepdims=True))
    is_label = jnp.arange(classes, dtype="int32") == labels[:, None]
    losses = _log_sum_exp(shifted) - jnp.where(is_label, shifted, 0).sum(-1)
    return jnp.where((labels >= 0) & (labels < classes), losses, 0)


@jax.custom_jvp
def _log_sum_exp(values: jax.Array) -> jax.Array:
    """Log-sum-exp of rows whose largest value is 0."""
    return jnp.log(jnp.exp(values).sum(-1))


@_log_sum_exp.defjvp
def _derivative(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (values,), (tangent,) = primals, tangents
    outputs = _log_sum_exp(values)
    return outputs, (jnp.exp(values - outputs[:, None]) * tangent).sum(-1)

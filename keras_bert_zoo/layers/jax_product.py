"""JAX's matmul in bfloat16 on a CPU that multiplies it; imported on that backend only.

XLA multiplies bfloat16 there only if the product's type is float32; otherwise it first converts both factors to
float32. For 1,792 x 384 x 1,536 the first takes 5.8 ms, the second 11. Only first derivatives in reverse mode are
supported.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from keras_bert_zoo.layers.passes import is_step
from keras_bert_zoo.on_cpu import has_bfloat16, on_cpu

_HAS_BFLOAT16 = has_bfloat16()


def takes(left: jax.Array, right: jax.Array) -> bool:
    """Whether `product` supports these arrays and is the better choice; in a step alone, which needs no more of it."""
    is_batch = left.shape[:-2] == right.shape[:-2]
    is_bfloat16 = left.dtype == right.dtype == jnp.bfloat16
    return _HAS_BFLOAT16 and is_step() and is_bfloat16 and (right.ndim == 2 or is_batch) and on_cpu(left)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(left: jax.Array, right: jax.Array, rounded: bool = True) -> jax.Array:
    """Return `left @ right`, summed in float32 and rounded once, or not at all.

    Args:
        left: `[..., n, k]`.
        right: `[k, m]`, or `[..., k, m]` with the same first axes.
        rounded: Whether to return bfloat16; else float32.
    """
    sums = _sums(left, right, [left.ndim - 1], [right.ndim - 2], range(right.ndim - 2))
    return sums.astype(left.dtype) if rounded else sums


def _forward(left: jax.Array, right: jax.Array, rounded: bool) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return product(left, right, rounded), (left, right)


def _backward(_: bool, factors: tuple[jax.Array, jax.Array], outer: jax.Array) -> tuple[jax.Array, jax.Array]:
    left, right = factors
    dtype, batch, outer = left.dtype, range(right.ndim - 2), outer.astype(left.dtype)
    of_left = _sums(outer, right, [outer.ndim - 1], [right.ndim - 1], batch)
    # XLA multiplies bfloat16 only if the axis that is summed comes last on the left, and exchanges axes only if several
    # are summed.
    left, outer = (_halved(factor, len(batch)) for factor in (left, outer))
    rows = range(len(batch), left.ndim - 1)
    return of_left.astype(dtype), _sums(left, outer, rows, rows, batch).astype(dtype)


def _halved(rows: jax.Array, axis: int) -> jax.Array:
    """Divide an axis in two if it is the last but one and even."""
    if rows.ndim - axis != 2 or rows.shape[axis] % 2:
        return rows
    return rows.reshape(*rows.shape[:axis], 2, rows.shape[axis] // 2, rows.shape[-1])


def _sums(
    left: jax.Array, right: jax.Array, of_left: Sequence[int], of_right: Sequence[int], batch: Sequence[int]
) -> jax.Array:
    dimensions = ((tuple(of_left), tuple(of_right)), (tuple(batch), tuple(batch)))
    return lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


product.defvjp(_forward, _backward)

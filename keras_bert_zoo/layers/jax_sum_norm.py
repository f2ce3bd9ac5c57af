"""LayerNorm of a residual sum with dropout, as a Pallas kernel and one for its gradient; imported on JAX only.

XLA makes three passes over the rows, and seven for the gradient. They take more than 8 of the 45 ms of kernel time in a
step of BERT base on an H200 (256 texts of 128 tokens). Here each array is read and written once. Only first derivatives
in reverse mode are supported.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from keras_bert_zoo.layers.dropout import drop_out
from keras_bert_zoo.layers.jax_kernels import by_share, compiled, is_for_gpu, places

_FORWARD = {"rows_at_once": 1, "num_warps": 4, "num_stages": 1}
# As many programs as the 132 processors of an H200 run at once; each sums its own weight gradients.
_BACKWARD = {"rows_at_once": 1, "num_warps": 4, "num_stages": 1, "programs": 924}


def takes(hidden: jax.Array) -> bool:
    """Whether the kernels support these rows `[batch, length, width]` and were written for such a GPU."""
    return hidden.shape[-1] <= 2048 and is_for_gpu(hidden.dtype, hidden.shape[0])


def sum_norm(
    hidden: jax.Array,
    change: jax.Array,
    bias: jax.Array,
    gamma: jax.Array,
    beta: jax.Array,
    epsilon: float,
    dropout: float = 0.0,
    key: Any = None,
    interpret: bool = False,
) -> jax.Array:
    """Return LayerNorm(hidden + dropout(change + bias)), with sums in float32.

    Args:
        hidden: `[batch, length, width]`.
        change: The same shape and dtype.
        bias: float32 `[width]`. In a model it and the other weights hold values of the `compute_dtype`.
        gamma: float32 `[width]`.
        beta: float32 `[width]`.
        epsilon: Added to the variance.
        dropout: Dropout rate, exact to 2^-32.
        key: Random key; a `Dropout` that `draws_cheaply` drops the same values with it.
        interpret: If True, interpret the kernels without a GPU.

    Returns:
        `[batch, length, width]`.
    """
    if not hidden.size:
        return hidden
    of_share = partial(_of_share, epsilon=epsilon, dropout=dropout, interpret=interpret)
    key = jax.random.key(0) if key is None else key
    return by_share(of_share, key, (hidden, change), (bias, gamma, beta))


def _of_share(
    key: Any, hidden: Any, change: Any, *weights: Any, epsilon: float, dropout: float, interpret: bool
) -> jax.Array:
    words = jax.random.bits(key, (2,), "uint32")
    rows = (array.reshape(-1, hidden.shape[-1]) for array in (hidden, change))
    return _sum_norm(*rows, *weights, words, epsilon, dropout, interpret).reshape(hidden.shape)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8))
def _sum_norm(
    hidden: Any, change: Any, bias: Any, gamma: Any, beta: Any, words: Any,
    epsilon: float, dropout: float, interpret: bool,
) -> jax.Array:  # fmt: skip
    return _normalise(hidden, change, bias, gamma, beta, words, epsilon, dropout, interpret)[0]


def _normalise(
    hidden: Any, change: Any, bias: Any, gamma: Any, beta: Any, words: Any,
    epsilon: float, dropout: float, interpret: bool,
) -> Any:  # fmt: skip
    rows = hidden.shape[0]
    rows_at_once = _FORWARD["rows_at_once"]
    of_row = jax.ShapeDtypeStruct((rows,), "float32")
    kernel = partial(_forward, rows_at_once=rows_at_once, dropout=dropout, epsilon=epsilon)
    outputs, sums, means, scales = pl.pallas_call(
        kernel,
        (jax.ShapeDtypeStruct(hidden.shape, hidden.dtype),) * 2 + (of_row,) * 2,
        grid=(pl.cdiv(rows, rows_at_once),),
        **compiled(**_FORWARD, interpret=interpret),
        name="sum_norm",
    )(hidden, change, bias, gamma, beta, words)
    return outputs, (sums, gamma, words, means, scales)


def _gradient(epsilon: float, dropout: float, interpret: bool, kept: Any, gradient: jax.Array) -> Any:
    rows, width = gradient.shape
    rows_at_once = _BACKWARD["rows_at_once"]
    blocks = pl.cdiv(rows, rows_at_once * _BACKWARD["programs"])
    programs = pl.cdiv(rows, rows_at_once * blocks)
    of_weights = jax.ShapeDtypeStruct((programs, width), "float32")
    to_hidden, to_change, *to_weights = pl.pallas_call(
        partial(_backward, rows_at_once=rows_at_once, blocks=blocks, dropout=dropout),
        (jax.ShapeDtypeStruct(gradient.shape, gradient.dtype),) * 2 + (of_weights,) * 3,
        grid=(programs,),
        **compiled(**_BACKWARD, interpret=interpret),
        name="sum_norm_gradient",
    )(*kept, gradient)
    return to_hidden, to_change, *(parts.sum(0) for parts in to_weights), None


_sum_norm.defvjp(_normalise, _gradient)


def _forward(
    hidden: Any, change: Any, bias: Any, gamma: Any, beta: Any, words: Any,
    outputs: Any, sums: Any, means: Any, scales: Any,
    *, rows_at_once: int, dropout: float, epsilon: float,
) -> None:  # fmt: skip
    rows, width = hidden.shape
    at, is_row, all_columns, is_column = _tile(pl.program_id(0), rows_at_once, rows, width)
    is_inside = is_row[:, None] & is_column[None, :]

    def weights(ref: Any) -> Any:
        return triton.load(ref.at[all_columns], mask=is_column, other=0)[None, :]

    def load(ref: Any) -> Any:
        return triton.load(ref.at[at, all_columns], mask=is_inside, other=0).astype("float32")

    total = load(hidden) + _dropped(load(change) + weights(bias), at.start, width, words, dropout)
    total = total.astype(sums.dtype)  # Rounded, as the gradient reads it.
    triton.store(sums.at[at, all_columns], total, mask=is_inside)
    total = total.astype("float32")
    mean = total.sum(1) / width
    centred = jnp.where(is_inside, total - mean[:, None], 0)
    scale = jax.lax.rsqrt((centred * centred).sum(1) / width + epsilon)
    result = centred * scale[:, None] * weights(gamma) + weights(beta)
    triton.store(outputs.at[at, all_columns], result.astype(outputs.dtype), mask=is_inside)
    triton.store(means.at[at], mean, mask=is_row)
    triton.store(scales.at[at], scale, mask=is_row)


def _backward(
    sums: Any, gamma: Any, words: Any, means: Any, scales: Any, gradient: Any,
    to_hidden: Any, to_change: Any, to_bias: Any, to_gamma: Any, to_beta: Any,
    *, rows_at_once: int, blocks: int, dropout: float,
) -> None:  # fmt: skip
    """Process some blocks of rows in a loop that sums the gradients of the weights."""
    rows, width = sums.shape
    program = pl.program_id(0)

    def over_rows(i: Any, carry: Any) -> Any:
        bias_sum, gamma_sum, beta_sum = carry
        at, is_row, all_columns, is_column = _tile(program * blocks + i, rows_at_once, rows, width)
        is_inside = is_row[:, None] & is_column[None, :]

        def load(ref: Any) -> Any:
            return triton.load(ref.at[at, all_columns], mask=is_inside, other=0).astype("float32")

        mean, scale = (triton.load(ref.at[at], mask=is_row, other=0)[:, None] for ref in (means, scales))
        wanted = load(gradient)
        normal = (load(sums) - mean) * scale
        of_normal = wanted * triton.load(gamma.at[all_columns], mask=is_column, other=0)[None, :]
        along = (of_normal * normal).sum(1)[:, None] / width
        to_sum = (of_normal - of_normal.sum(1)[:, None] / width - normal * along) * scale
        to_product = _dropped(to_sum, at.start, width, words, dropout)
        triton.store(to_hidden.at[at, all_columns], to_sum.astype(to_hidden.dtype), mask=is_inside)
        triton.store(to_change.at[at, all_columns], to_product.astype(to_change.dtype), mask=is_inside)
        return bias_sum + to_product, gamma_sum + wanted * normal, beta_sum + wanted

    _, _, all_columns, is_column = _tile(0, rows_at_once, rows, width)
    nothing = jnp.zeros((rows_at_once, is_column.shape[0]), "float32")
    carry = jax.lax.fori_loop(jnp.int32(0), jnp.int32(blocks), over_rows, (nothing,) * 3)
    for ref, total in zip((to_bias, to_gamma, to_beta), carry, strict=True):
        triton.store(ref.at[program, all_columns], total.sum(0), mask=is_column)


def _tile(i: Any, rows_at_once: int, rows: int, width: int) -> tuple[Any, Any, Any, Any]:
    """Return the i-th block of rows and all columns, whose number Triton requires to be a power of two."""
    return (*places(i, rows_at_once, rows), *places(jnp.int32(0), pl.next_power_of_2(width), width))


def _dropped(values: Any, first_row: Any, width: int, words: Any, dropout: float) -> Any:
    """Apply dropout to a tile as `Dropout` does, which counts places over all rows."""
    if not dropout:
        return values
    first, second = (triton.load(words.at[jnp.int32(i)]) for i in range(2))
    row = first_row + jax.lax.broadcasted_iota("int32", values.shape, 0)
    place = row * width + jax.lax.broadcasted_iota("int32", values.shape, 1)
    return drop_out(values, dropout, place.astype("uint32"), first, second)

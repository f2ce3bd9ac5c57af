"""Attention with dropout of the probabilities, as a Pallas kernel and one for its gradient; imported on JAX only.

This is the counterpart of `torch_attention`, which explains more. cuDNN's kernel, as JAX calls it, has no dropout. With
the probabilities in memory, attention takes two fifths of a step of BERT base at 512 tokens. Only first derivatives in
reverse mode are supported.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from keras_bert_zoo.layers.jax_kernels import by_share, compiled, is_for_gpu, places

_FORWARD = {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 3}
_BACKWARD = {"block_m": 64, "block_n": 128, "num_warps": 8, "num_stages": 1}
_LN_2 = math.log(2)


def takes(qkv: jax.Array) -> bool:
    """Whether the kernels support this array `[batch, length, 3, heads, dim]` and were measured on such a GPU."""
    return qkv.shape[-1] in (16, 32, 64) and is_for_gpu(qkv.dtype, qkv.shape[0])


def attention(
    qkv: jax.Array, mask: Any, dropout: float, key: Any, bias: Any = None, interpret: bool = False
) -> jax.Array:
    """Return softmax(q k^T / sqrt(dim)) v with dropout of the probabilities; kept ones are divided by their share.

    Args:
        qkv: `[batch, length, 3, heads, dim]`.
        mask: bool `[batch, length]`, True at the keys to attend to, or None. In a text without such keys, all
            probabilities are the same.
        dropout: Dropout rate, exact to 2^-32.
        key: Random key.
        bias: `[3, heads, dim]`, added to `qkv`, or None. The key bias is left out: it adds the same to all scores of a
            query, which does not change the softmax.
        interpret: If True, interpret the kernels without a GPU.

    Returns:
        `[batch, length, heads, dim]`.
    """
    of_share = partial(_of_share, dropout=dropout, interpret=interpret)
    bias = jnp.zeros(qkv.shape[2:], "float32") if bias is None else bias.astype("float32")
    return by_share(of_share, key, (qkv, mask), (bias,))


def _of_share(key: Any, qkv: jax.Array, mask: Any, bias: Any, dropout: float, interpret: bool) -> jax.Array:
    batch, length, _, heads, _ = qkv.shape
    factor = jnp.ones((batch, length), "float32")
    term = jnp.zeros((batch, length), "float32")
    if mask is not None:
        is_any = mask.any(-1, keepdims=True)
        factor, term = jnp.where(is_any, factor, 0), jnp.where(is_any & ~mask, -jnp.inf, term)
    words = jax.random.bits(key, (batch * heads + 1, length), "uint32")
    of_queries, of_keys = words[:-1].reshape(batch, heads, length), words[-1]
    rows = qkv.reshape(batch, length, 3 * heads, -1)
    return _attention(rows, bias, factor, term, of_queries, of_keys, dropout, interpret)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _attention(
    qkv: Any, bias: Any, factor: Any, term: Any, of_queries: Any, of_keys: Any, dropout: float, interpret: bool
) -> jax.Array:
    return _attend(qkv, bias, factor, term, of_queries, of_keys, dropout, interpret)[0]


def _attend(
    qkv: Any, bias: Any, factor: Any, term: Any, of_queries: Any, of_keys: Any, dropout: float, interpret: bool
) -> Any:
    (batch, heads, length), dim = of_queries.shape, qkv.shape[-1]
    blocks, block_m = pl.cdiv(length, _FORWARD["block_m"]), _FORWARD["block_m"]
    kernel = partial(_forward, **_numbers(dim, dropout), block_m=block_m, block_n=_FORWARD["block_n"])
    outputs, log_sums = pl.pallas_call(
        kernel,
        (
            jax.ShapeDtypeStruct((batch, length, heads, dim), qkv.dtype),
            jax.ShapeDtypeStruct((batch, heads, length), "float32"),
        ),
        grid=(batch * heads * blocks,),
        **compiled(**_FORWARD, interpret=interpret),
        name="attention",
    )(qkv, bias, factor, term, of_queries, of_keys)
    return outputs, (qkv, bias, factor, term, of_queries, of_keys, outputs, log_sums)


def _gradient(dropout: float, interpret: bool, kept: Any, gradient: jax.Array) -> Any:
    (batch, heads, length), dim = kept[4].shape, kept[0].shape[-1]
    block_m, block_n = _BACKWARD["block_m"], _BACKWARD["block_n"]
    is_single = length <= block_n
    kernel = partial(_backward, **_numbers(dim, dropout), is_single=is_single, block_m=block_m, block_n=block_n)
    kernel = partial(kernel, meet=(lambda: None) if interpret else triton.debug_barrier)
    shapes = [jax.ShapeDtypeStruct(kept[0].shape, kept[0].dtype)]
    if not is_single:
        shapes += [
            jax.ShapeDtypeStruct((batch, heads, dim, length), "float32"),
            jax.ShapeDtypeStruct((batch, heads, length), "float32"),
        ]
    gradients, *_ = pl.pallas_call(
        kernel, shapes, grid=(batch * heads,), **compiled(**_BACKWARD, interpret=interpret), name="attention_gradient"
    )(*kept, gradient)
    to_bias = gradients.astype("float32").sum((0, 1)).reshape(kept[1].shape)
    return gradients, to_bias, None, None, None, None


_attention.defvjp(_attend, _gradient)


def _numbers(dim: int, dropout: float) -> dict[str, Any]:
    """Return the hash below which a probability is dropped, and the factors of the scores and kept probabilities."""
    return {
        "dropped": round(dropout * 2**32),
        "scale": dim**-0.5 * math.log2(math.e),
        "growth": 1 / (1 - dropout),
    }


def _is_kept(of_rows: Any, of_columns: Any, dropped: int) -> Any:
    """Hash the words of a tile's rows and columns by the middle of lowbias32; its other steps serve the lower bits."""
    hashes = (of_rows[:, None] ^ of_columns[None, :]) * jnp.uint32(0x7FEB352D)
    return (hashes ^ (hashes >> jnp.uint32(15))) * jnp.uint32(0x846CA68B) >= jnp.uint32(dropped)


def _divided(number: Any, by: int) -> tuple[Any, Any]:
    return jax.lax.div(number, jnp.int32(by)), jax.lax.rem(number, jnp.int32(by))


def _product(one: Any, other: Any, contracted: tuple[int, int]) -> Any:
    """Matrix product in float32 over one dimension of each operand."""
    numbers = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(one, other, numbers, preferred_element_type=jnp.float32)


def _forward(
    qkv: Any, bias: Any, factor: Any, term: Any, of_queries: Any, of_keys: Any, outputs: Any, log_sums: Any,
    *, dropped: int, scale: float, growth: float, block_m: int, block_n: int,
) -> None:  # fmt: skip
    """Process a block of queries of one head of one text, in a loop over its blocks of keys."""
    heads, length = of_queries.shape[1:]
    dim = qkv.shape[-1]
    blocks = pl.cdiv(length, block_m)
    sequence, block = _divided(pl.program_id(0), blocks)
    text, head = _divided(sequence, heads)
    at, is_query = places(block, block_m, length)
    query = _load_query(qkv, bias, text, at, is_query, head)
    query_words = triton.load(of_queries.at[text, head, at], mask=is_query, other=0)

    def over_keys(i: Any, carry: Any) -> Any:
        largest, sums, kept_sums, context = carry
        keys, is_key = places(i, block_n, length)
        key = triton.load(qkv.at[text, keys, heads + head, :], mask=is_key[:, None], other=0)
        value = triton.load(qkv.at[text, keys, 2 * heads + head, :], mask=is_key[:, None], other=0)
        factors = triton.load(factor.at[text, keys], mask=is_key, other=0) * scale
        terms = triton.load(term.at[text, keys], mask=is_key, other=-jnp.inf)
        scores = _product(query, key, (1, 1)) * factors[None, :] + terms[None, :]
        larger = jnp.maximum(largest, scores.max(1))
        shares = jnp.exp2(scores - larger[:, None])
        shrunk = jnp.exp2(largest - larger)
        sums = sums * shrunk + shares.sum(1)
        key_words = triton.load(of_keys.at[keys], mask=is_key, other=0)
        shares = jnp.where(_is_kept(query_words, key_words, dropped), shares, 0)
        kept_sums = kept_sums * shrunk + shares.sum(1)
        context = context * shrunk[:, None] + _product(shares.astype(value.dtype), value, (1, 0))
        return larger, sums, kept_sums, context

    nothing = jnp.zeros(block_m, "float32")
    start = jnp.full(block_m, -1e30, "float32"), nothing, nothing, jnp.zeros((block_m, dim), "float32")
    blocks = jnp.int32(pl.cdiv(length, block_n))
    largest, sums, kept_sums, context = jax.lax.fori_loop(jnp.int32(0), blocks, over_keys, start)
    context += kept_sums[:, None] * triton.load(bias.at[jnp.int32(2), head, :])[None, :]  # Once, not for each value.
    context = (context * (growth / sums)[:, None]).astype(query.dtype)
    triton.store(outputs.at[text, at, head, :], context, mask=is_query[:, None])
    triton.store(log_sums.at[text, head, at], largest + jnp.log2(sums), mask=is_query)


def _backward(
    qkv: Any, bias: Any, factor: Any, term: Any, of_queries: Any, of_keys: Any, outputs: Any, log_sums: Any,
    gradient: Any, gradients: Any, *scratch: Any,
    dropped: int, scale: float, growth: float, is_single: bool, block_m: int, block_n: int,
    meet: Callable[[], None],
) -> None:  # fmt: skip
    """Process one head of one text, in a loop over blocks of keys with an inner loop over blocks of queries.

    With several blocks of keys (not `is_single`), `sums` accumulates the queries' gradients. A query's delta is the sum
    of its outputs times their gradients. The sum of its probabilities times theirs is the same, dropped or not.
    """
    heads, length = of_queries.shape[1:]
    dim = qkv.shape[-1]
    sequence = pl.program_id(0)
    text, head = _divided(sequence, heads)

    value_bias = triton.load(bias.at[jnp.int32(2), head, :])

    def delta_of(at: Any, is_query: Any) -> Any:
        output = triton.load(outputs.at[text, at, head, :], mask=is_query[:, None], other=0).astype("float32")
        wanted = triton.load(gradient.at[text, at, head, :], mask=is_query[:, None], other=0).astype("float32")
        return (output * wanted).sum(1)

    if not is_single:
        sums, deltas = scratch

        def keep_delta(j: Any, _: Any) -> None:
            at, is_query = places(j, block_m, length)
            triton.store(deltas.at[text, head, at], delta_of(at, is_query), mask=is_query)

        jax.lax.fori_loop(jnp.int32(0), jnp.int32(pl.cdiv(length, block_m)), keep_delta, None)
        meet()

    def over_keys(i: Any, _: Any) -> None:
        keys, is_key = places(i, block_n, length)
        key = triton.load(qkv.at[text, keys, heads + head, :], mask=is_key[:, None], other=0)
        value = triton.load(qkv.at[text, keys, 2 * heads + head, :], mask=is_key[:, None], other=0)
        factors = triton.load(factor.at[text, keys], mask=is_key, other=0) * scale
        terms = triton.load(term.at[text, keys], mask=is_key, other=-jnp.inf)
        key_words = triton.load(of_keys.at[keys], mask=is_key, other=0)

        def over_queries(j: Any, carry: Any) -> Any:
            to_key, to_value = carry
            at, is_query = places(j, block_m, length)
            query = _load_query(qkv, bias, text, at, is_query, head)
            wanted = triton.load(gradient.at[text, at, head, :], mask=is_query[:, None], other=0)
            of_bias = (wanted.astype("float32") * value_bias[None, :]).sum(1)
            if is_single:
                delta = delta_of(at, is_query)
            else:
                delta = triton.load(deltas.at[text, head, at], mask=is_query, other=0)
            query_words = triton.load(of_queries.at[text, head, at], mask=is_query, other=0)
            log_sum = triton.load(log_sums.at[text, head, at], mask=is_query, other=jnp.inf)
            scores = _product(key, query, (1, 1)) * factors[:, None] + terms[:, None]
            shares = jnp.exp2(scores - log_sum[None, :])
            is_kept = _is_kept(key_words, query_words, dropped)
            to_value += _product(jnp.where(is_kept, shares, 0).astype(query.dtype), wanted, (1, 0))
            to_shares = jnp.where(is_kept, _product(value, wanted, (1, 1)) + of_bias[None, :], 0) * growth
            to_scores = (shares * (to_shares - delta[None, :])).astype(query.dtype)
            to_key += _product(to_scores, query, (1, 0))
            to_query = _product(key, to_scores, (0, 0))  # [dim, queries], without transposed scores.
            is_last = is_query
            if not is_single:
                place = sums.at[text, head, :, at]
                to_query += triton.load(place, mask=(is_query & (i > 0))[None, :], other=0)
                is_last = is_query & ((i + 1) * block_n >= length)
                triton.store(place, to_query, mask=(is_query & ((i + 1) * block_n < length))[None, :])
            to_query = (to_query * (scale * _LN_2)).astype(query.dtype).T
            triton.store(gradients.at[text, at, head, :], to_query, mask=is_last[:, None])
            return to_key, to_value

        start = jnp.zeros((block_n, dim), "float32"), jnp.zeros((block_n, dim), "float32")
        to_key, to_value = jax.lax.fori_loop(jnp.int32(0), jnp.int32(pl.cdiv(length, block_m)), over_queries, start)
        to_key, to_value = (to_key * (scale * _LN_2)).astype(key.dtype), (to_value * growth).astype(key.dtype)
        triton.store(gradients.at[text, keys, heads + head, :], to_key, mask=is_key[:, None])
        triton.store(gradients.at[text, keys, 2 * heads + head, :], to_value, mask=is_key[:, None])
        if not is_single:
            meet()  # Another thread may read what this one wrote to `sums`.

    jax.lax.fori_loop(jnp.int32(0), jnp.int32(pl.cdiv(length, block_n)), over_keys, None)


def _load_query(qkv: Any, bias: Any, text: Any, at: Any, is_query: Any, head: Any) -> Any:
    product = triton.load(qkv.at[text, at, head, :], mask=is_query[:, None], other=0)
    return (product.astype("float32") + triton.load(bias.at[jnp.int32(0), head, :])[None, :]).astype(product.dtype)

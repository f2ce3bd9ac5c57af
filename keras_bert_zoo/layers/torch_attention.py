"""Attention with dropout of the probabilities, as a Triton kernel and one for its gradient; imported with Triton only.

No probability reaches GPU memory (Dao et al. 2022, "FlashAttention"). A hash of two random words, its query's and its
key's, decides whether it is dropped. cuDNN's and PyTorch's kernels compute ten rounds of Philox and take up to three
times as long with dropout as without. Query, key and value are read from the output of one matmul, and their gradients
are written in the same layout. Only first derivatives are supported, as in PyTorch's kernels.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl

# The fastest on an H200 for heads of width 64, at 128 and 512 tokens.
_FORWARD = {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 3}
_BACKWARD = {"block_m": 64, "block_n": 128, "num_warps": 8, "num_stages": 3}
_LN_2: tl.constexpr = tl.constexpr(math.log(2))  # Powers have base 2, as the GPU's do.


def takes(qkv: torch.Tensor) -> bool:
    """Whether the kernels support this tensor `[batch, length, 3, heads, dim]` and were measured on such a GPU."""
    if qkv.device.type != "cuda" or torch.version.hip or torch._C._are_functorch_transforms_active():
        return False
    is_half = qkv.dtype in (torch.float16, torch.bfloat16)
    return is_half and qkv.shape[-1] in (16, 32, 64) and torch.cuda.get_device_capability(qkv.device)[0] == 9


def attention(qkv: torch.Tensor, mask: Any, dropout: float) -> torch.Tensor:
    """Return softmax(q k^T / sqrt(dim)) v with dropout of the probabilities; kept ones are divided by their share.

    Args:
        qkv: `[batch, length, 3, heads, dim]`.
        mask: bool `[batch, length]`, True at the keys to attend to, or None. In a text without such keys, all
            probabilities are the same.
        dropout: Dropout rate, exact to 2^-32.

    Returns:
        `[batch, length, heads, dim]`.
    """
    return _attention(qkv, None if mask is None else marked(mask), dropout)[0]


def marked(mask: torch.Tensor) -> torch.Tensor:
    """Encode a mask for the kernels: 1 at the keys to attend to, and 2 at all keys of a text without such keys."""
    return torch.where(mask.any(-1, keepdim=True), mask.to(torch.uint8), 2)


@torch.library.custom_op("keras_bert_zoo::attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _attention(
    qkv: torch.Tensor, marks: torch.Tensor | None, dropout: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the outputs, the logs of the softmax sums, and the words: each query's, and in the last row each key's."""
    qkv, marks = qkv.contiguous(), None if marks is None else marks.contiguous()
    batch, length, _, heads, dim = qkv.shape
    outputs, log_sums, words = _empty(qkv)
    words.random_(-(2**31), 2**31 - 1)
    grid = (batch * heads * triton.cdiv(length, _FORWARD["block_m"]),)
    numbers = length, heads, *_numbers(dim, dropout)
    kind = {"is_masked": marks is not None, "dim": dim, **_FORWARD}
    with torch.cuda.device_of(qkv):  # Triton uses the current device.
        _forward[grid](qkv, marks, words, outputs, log_sums, batch * heads, *numbers, **kind)
    return outputs, log_sums, words


@_attention.register_fake
def _empty(qkv: Any, marks: Any = None, dropout: float = 0.0) -> Any:
    batch, length, _, heads, dim = qkv.shape
    log_sums = torch.empty(batch * heads, length, dtype=torch.float32, device=qkv.device)
    words = torch.empty(batch * heads + 1, length, dtype=torch.int32, device=qkv.device)
    return qkv.new_empty(batch, length, heads, dim), log_sums, words


@torch.library.custom_op("keras_bert_zoo::attention_gradient", mutates_args=())
def _gradient(
    qkv: torch.Tensor,
    marks: torch.Tensor | None,
    words: torch.Tensor,
    outputs: torch.Tensor,
    log_sums: torch.Tensor,
    gradient: torch.Tensor,
    dropout: float,
) -> torch.Tensor:
    qkv, gradient, marks = qkv.contiguous(), gradient.contiguous(), None if marks is None else marks.contiguous()
    batch, length, _, heads, dim = qkv.shape
    gradients = torch.empty_like(qkv)
    is_single = length <= _BACKWARD["block_n"]
    sizes = (1, 1) if is_single else (batch * heads * length * dim, batch * heads * length)
    sums, deltas = (torch.empty(size, dtype=torch.float32, device=qkv.device) for size in sizes)
    numbers = length, heads, *_numbers(dim, dropout)
    kind = {"is_masked": marks is not None, "is_single": is_single, "dim": dim, **_BACKWARD}
    tensors = qkv, marks, words, outputs, log_sums, gradient, sums, deltas, gradients
    with torch.cuda.device_of(qkv):
        _backward[(batch * heads,)](*tensors, batch * heads, *numbers, **kind)
    return gradients


@_gradient.register_fake
def _(qkv: Any, *others: Any) -> Any:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    qkv, marks, ctx.dropout = inputs
    outputs, log_sums, words = output
    ctx.save_for_backward(qkv, marks, words, outputs, log_sums)
    ctx.set_materialize_grads(False)  # The other two outputs need no gradients.


def _backpropagate(ctx: Any, gradient: Any, *of_others: Any) -> Any:
    return None if gradient is None else _gradient(*ctx.saved_tensors, gradient, ctx.dropout), None, None


_attention.register_autograd(_backpropagate, setup_context=_keep)


def _numbers(dim: int, dropout: float) -> tuple[int, float, float]:
    """Return the hash below which a probability is dropped, and the factors of the scores and kept probabilities."""
    return round(dropout * 2**32), dim**-0.5 * math.log2(math.e), 1 / (1 - dropout)


@triton.jit
def _is_kept(of_rows, of_columns, dropped):
    """Hash the words of a tile's rows and columns by the middle of lowbias32; its other steps serve the lower bits."""
    hashes = (of_rows[:, None] ^ of_columns[None, :]).to(tl.uint32) * 0x7FEB352D
    return (hashes ^ (hashes >> 15)) * 0x846CA68B >= dropped


@triton.jit
def _terms(marks, places, inside, scale, is_masked: tl.constexpr):
    """Return the factor of the keys' scores and what is added to them."""
    if is_masked:
        mark = tl.load(marks + places, mask=inside, other=0)
        return tl.where(mark == 2, 0.0, scale), tl.where(mark > 0, 0.0, float("-inf"))
    return tl.where(inside, scale, 0.0), tl.where(inside, 0.0, float("-inf"))


@triton.jit
def _forward(
    qkv, marks, words, outputs, log_sums, sequences, length, heads, dropped, scale, growth,
    is_masked: tl.constexpr, dim: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Process a block of queries of one head of one text, in a loop over its blocks of keys."""
    blocks = tl.cdiv(length, block_m)
    sequence, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    text, head = sequence // heads, sequence % heads
    row, dims = 3 * heads * dim, tl.arange(0, dim)
    qkv += text.to(tl.int64) * length * row + head * dim
    outputs += text.to(tl.int64) * length * heads * dim + head * dim
    queries = block * block_m + tl.arange(0, block_m)
    in_queries = queries < length
    query = tl.load(qkv + queries[:, None] * row + dims, mask=in_queries[:, None], other=0.0)
    of_queries = tl.load(words + sequence * length + queries, mask=in_queries, other=0)
    largest = tl.full((block_m,), -1e30, tl.float32)
    sums = tl.zeros((block_m,), tl.float32)
    context = tl.zeros((block_m, dim), tl.float32)
    for start in range(0, length, block_n):
        keys = start + tl.arange(0, block_n)
        in_keys = keys < length
        places = qkv + heads * dim + keys[:, None] * row + dims
        key = tl.load(places, mask=in_keys[:, None], other=0.0)
        value = tl.load(places + heads * dim, mask=in_keys[:, None], other=0.0)
        factor, term = _terms(marks, text * length + keys, in_keys, scale, is_masked)
        scores = tl.dot(query, tl.trans(key)) * factor[None, :] + term[None, :]
        larger = tl.maximum(largest, tl.max(scores, 1))
        shares = tl.exp2(scores - larger[:, None])
        shrunk = tl.exp2(largest - larger)
        sums = sums * shrunk + tl.sum(shares, 1)
        of_keys = tl.load(words + sequences * length + keys, mask=in_keys, other=0)
        shares = tl.where(_is_kept(of_queries, of_keys, dropped), shares, 0.0)
        context = context * shrunk[:, None] + tl.dot(shares.to(query.dtype), value)
        largest = larger
    context = context * (growth / sums)[:, None]
    places = outputs + queries[:, None] * (heads * dim) + dims
    tl.store(places, context.to(query.dtype), mask=in_queries[:, None])
    tl.store(log_sums + sequence * length + queries, largest + tl.log2(sums), mask=in_queries)


@triton.jit
def _backward(
    qkv, marks, words, outputs, log_sums, gradient, sums, deltas, gradients,
    sequences, length, heads, dropped, scale, growth,
    is_masked: tl.constexpr, is_single: tl.constexpr, dim: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Process one head of one text, in a loop over blocks of keys with an inner loop over blocks of queries.

    With several blocks of keys (not `is_single`), `sums` accumulates the queries' gradients. A query's delta is the sum
    of its outputs times their gradients. The sum of its probabilities times theirs is the same, dropped or not.
    """
    sequence = tl.program_id(0)
    text, head = sequence // heads, sequence % heads
    row, out_row, dims = 3 * heads * dim, heads * dim, tl.arange(0, dim)
    first = text.to(tl.int64) * length
    qkv += first * row + head * dim
    gradients += first * row + head * dim
    outputs += first * out_row + head * dim
    gradient += first * out_row + head * dim
    words_of_keys = words + sequences * length
    words += sequence * length
    log_sums += sequence * length
    if not is_single:
        sums += sequence.to(tl.int64) * length * dim
        deltas += sequence * length
        for start in range(0, length, block_m):
            queries = start + tl.arange(0, block_m)
            places = queries[:, None] * out_row + dims
            output = tl.load(outputs + places, mask=(queries < length)[:, None], other=0.0).to(tl.float32)
            wanted = tl.load(gradient + places, mask=(queries < length)[:, None], other=0.0).to(tl.float32)
            tl.store(deltas + queries, tl.sum(output * wanted, 1), mask=queries < length)
        tl.debug_barrier()
    for start in range(0, length, block_n):
        keys = start + tl.arange(0, block_n)
        in_keys = keys < length
        places_of_keys = out_row + keys[:, None] * row + dims
        key = tl.load(qkv + places_of_keys, mask=in_keys[:, None], other=0.0)
        value = tl.load(qkv + places_of_keys + out_row, mask=in_keys[:, None], other=0.0)
        factor, term = _terms(marks, text * length + keys, in_keys, scale, is_masked)
        of_keys = tl.load(words_of_keys + keys, mask=in_keys, other=0)
        to_key = tl.zeros((block_n, dim), tl.float32)
        to_value = tl.zeros((block_n, dim), tl.float32)
        for start_m in range(0, length, block_m):
            queries = start_m + tl.arange(0, block_m)
            in_queries = queries < length
            query = tl.load(qkv + queries[:, None] * row + dims, mask=in_queries[:, None], other=0.0)
            places = queries[:, None] * out_row + dims
            wanted = tl.load(gradient + places, mask=in_queries[:, None], other=0.0)
            if is_single:
                output = tl.load(outputs + places, mask=in_queries[:, None], other=0.0)
                delta = tl.sum(output.to(tl.float32) * wanted.to(tl.float32), 1)
            else:
                delta = tl.load(deltas + queries, mask=in_queries, other=0.0)
            of_queries = tl.load(words + queries, mask=in_queries, other=0)
            log_sum = tl.load(log_sums + queries, mask=in_queries, other=float("inf"))
            scores = tl.dot(key, tl.trans(query)) * factor[:, None] + term[:, None]
            shares = tl.exp2(scores - log_sum[None, :])
            is_kept = _is_kept(of_keys, of_queries, dropped)
            to_value += tl.dot(tl.where(is_kept, shares, 0.0).to(query.dtype), wanted)
            to_shares = tl.where(is_kept, tl.dot(value, tl.trans(wanted)), 0.0) * growth
            to_scores = (shares * (to_shares - delta[None, :])).to(query.dtype)
            to_key += tl.dot(to_scores, query)
            to_query = tl.dot(tl.trans(to_scores), key)
            if not is_single:
                after = tl.full((block_m,), block_n, tl.int32) + start
                places = sums + queries[:, None] * dim + dims
                to_query += tl.load(places, mask=(in_queries & (after > block_n))[:, None], other=0.0)
                tl.store(places, to_query, mask=(in_queries & (after < length))[:, None])
                in_queries = in_queries & (after >= length)
            to_query = to_query * (scale * _LN_2)
            tl.store(gradients + queries[:, None] * row + dims, to_query.to(query.dtype), mask=in_queries[:, None])
        tl.store(gradients + places_of_keys, (to_key * (scale * _LN_2)).to(key.dtype), mask=in_keys[:, None])
        tl.store(gradients + places_of_keys + out_row, (to_value * growth).to(key.dtype), mask=in_keys[:, None])
        if not is_single:
            tl.debug_barrier()  # Another thread may read what this one wrote to `sums`.

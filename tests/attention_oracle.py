"""Attention with dropout and its gradient in NumPy (Vaswani et al. 2017, section 3.2.1; Dao et al. 2022, app. B)."""

import numpy as np


def hashed(of_rows, of_columns):
    """Hash each row's word with each column's: `[..., rows]` and `[columns]` give `[..., rows, columns]`."""
    hashes = (of_rows[..., None] ^ of_columns) * np.uint32(0x7FEB352D)
    return (hashes ^ (hashes >> np.uint32(15))) * np.uint32(0x846CA68B)


def is_kept(of_queries, of_keys, rate):
    """Return which probabilities are not dropped, by words `[batch, heads, length]` and `[length]`."""
    return hashed(of_queries, of_keys) >= np.uint32(round(rate * 2**32))


def attention(qkv, mask, kept, rate, gradient):
    """Return the outputs `[batch, length, heads, dim]` and the gradient of `qkv`; `gradient` is that of the outputs.

    If a text is all padding, its probabilities are all alike, and nothing depends on its queries and keys.
    """
    query, key, value = np.moveaxis(qkv.astype("float64"), 3, 1).transpose(3, 0, 1, 2, 4)
    gradient = np.moveaxis(gradient.astype("float64"), 2, 1)
    scale = query.shape[-1] ** -0.5
    scores = query @ np.swapaxes(key, 2, 3) * scale
    is_text = np.ones(len(qkv), bool) if mask is None else mask.any(1)
    seen = np.ones(qkv.shape[:2], bool) if mask is None else mask | ~is_text[:, None]
    scores = np.where(is_text[:, None, None, None], scores, 0.0)
    shares = np.exp(scores - scores.max(-1, keepdims=True)) * seen[:, None, None]
    shares /= shares.sum(-1, keepdims=True)
    factors = kept / (1 - rate)
    outputs = shares * factors @ value
    to_value = np.swapaxes(shares * factors, 2, 3) @ gradient
    to_shares = gradient @ np.swapaxes(value, 2, 3) * factors
    to_scores = shares * (to_shares - (to_shares * shares).sum(-1, keepdims=True)) * scale
    to_query, to_key = to_scores @ key, np.swapaxes(to_scores, 2, 3) @ query
    gradients = np.stack([to_query, to_key, to_value]).transpose(1, 3, 0, 2, 4)
    return np.moveaxis(outputs, 1, 2), gradients, is_text


def assert_attention(qkv, mask, kept, rate, gradient, outputs, gradients, rtol):
    """Compare relative norms, as half precision rounds each value.

    Texts that are all padding count only by their outputs and the gradients of their values.
    """
    expected, expected_gradients, is_text = attention(qkv, mask, kept, rate, gradient)
    pairs = [(outputs, expected), (gradients[is_text], expected_gradients[is_text])]
    for found, wanted in [*pairs, (gradients[:, :, 2], expected_gradients[:, :, 2])]:
        error = np.linalg.norm(found.astype("float64") - wanted) / np.linalg.norm(wanted)
        assert error < rtol


def case(batch, length, heads, dim, is_masked, seed=0):
    """Return `qkv`, a mask with holes, and a gradient; one text sees nothing, and one begins with padding."""
    rng = np.random.default_rng(seed)
    qkv, gradient = rng.normal(size=(batch, length, 3, heads, dim)), rng.normal(size=(batch, length, heads, dim))
    if not is_masked:
        return qkv, None, gradient
    mask = rng.random((batch, length)) < 0.7
    mask[0], mask[1, : length // 2] = False, False
    return qkv, mask, gradient


# Lengths shorter than a block, of several query blocks to one key block, and of several blocks of both.
CASES = [
    (2, 20, 2, 16, True, 0.1),
    (1, 128, 2, 64, False, 0.1),
    (3, 150, 1, 32, True, 0.5),
    (2, 260, 1, 16, True, 0.0),
]

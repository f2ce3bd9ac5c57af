"""The backend's fused attention: no matrix of probabilities in memory, where the device has a kernel for it."""

from importlib.util import find_spec
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.on_cpu import on_cpu

_HAS_TRITON = find_spec("triton") is not None


def fused_attention(
    qkv: Any, mask: Any, causal: bool, dropout: float = 0.0, seeds: Any = None, bias: Any = None
) -> Any:
    """softmax(q k^T / sqrt(d)) v, the fastest way of the backend where nobody asks for the probabilities.

    Args:
        qkv: `[batch, length, 3, heads, head_dim]`.
        mask: bool `[batch, 1, 1, length]`, True at what is seen, or None.
        causal: If True, a position sees itself and those before it only.
        dropout: Rate at which probabilities are dropped; only where `drops_out(qkv, causal)`.
        seeds: Keras' generator of seeds; of use with dropout on JAX.
        bias: `[3, heads, head_dim]`, added to `qkv` first; only with dropout and where `adds_bias(qkv, causal)`.

    Returns:
        `[batch, length, heads, head_dim]`.
    """
    backend = keras.backend.backend()
    if dropout and (kernels := _own_kernels(qkv, causal)):
        drawn_with = [seeds.next(), bias] if backend == "jax" else []  # PyTorch has a state of its own.
        return kernels.attention(qkv, None if mask is None else mask[:, 0, 0], dropout, *drawn_with)
    if backend == "torch":
        query, key, value = qkv.unbind(2)  # Its gradient is one array, written once.
        return _in_torch(query, key, value, mask, causal, dropout)
    query, key, value = (qkv[:, :, i] for i in range(3))
    if backend == "jax":
        return _in_jax(query, key, value, mask, causal)
    return ops.dot_product_attention(query, key, value, mask=mask, is_causal=causal)


def fused_attention_pays(qkv: Any, causal: bool, dropout: float, training: bool | None) -> bool:
    """Whether there is such a kernel for this call, and it is the faster way."""
    if keras.backend.backend() == "tensorflow":
        return False  # It has none: Keras composes it, of einsums that transpose more than is needed.
    return (dropout == 0 or drops_out(qkv, causal)) and not (training and _trains_slowly(qkv))


def drops_out(qkv: Any, causal: bool) -> bool:
    """Whether the kernel drops probabilities out itself, and fast: PyTorch's on an accelerator, or our own."""
    return not on_cpu(qkv) and (keras.backend.backend() == "torch" or _own_kernels(qkv, causal) is not None)


def adds_bias(qkv: Any, causal: bool) -> bool:
    """Whether the kernel takes a product without its bias, of which `qkv` has shape and dtype.

    XLA would read and write the whole to add it.
    """
    return keras.backend.backend() == "jax" and _own_kernels(qkv, causal) is not None


def _own_kernels(qkv: Any, causal: bool) -> Any:
    """The module that has our own kernels, if they take this call."""
    backend = keras.backend.backend()
    if causal or on_cpu(qkv):
        return None
    if backend == "torch" and _HAS_TRITON:
        from keras_bert_zoo.layers import torch_attention

        return torch_attention if torch_attention.takes(qkv) else None
    if backend == "jax":
        from keras_bert_zoo.layers import jax_attention

        return jax_attention if jax_attention.takes(qkv) else None
    return None


def _trains_slowly(qkv: Any) -> bool:
    """Whether training is faster without it: PyTorch's gradient on a CPU does not use its bfloat16 products."""
    if keras.backend.backend() != "torch" or keras.backend.standardize_dtype(qkv.dtype) != "bfloat16":
        return False
    return on_cpu(qkv) and qkv.shape[1] <= 256  # Measured: 3 x at 128, level at 512.


def _in_torch(query: Any, key: Any, value: Any, mask: Any, causal: bool, dropout: float) -> Any:
    import torch

    bias = None
    if mask is not None:
        if causal:  # PyTorch takes the one or the other.
            length = query.shape[1]
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        # Not minus infinity, of which a row of padding alone would be NaN; and no constant that must go to the device.
        bias = (mask.to(query.dtype) - 1) * (torch.finfo(query.dtype).max / 2)
    if _predicts_slowly(query) and not (causal and bias is None):
        return _of_products(query, key, value, bias)
    heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
    context = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=bias, dropout_p=dropout, is_causal=causal and bias is None
    )
    return context.transpose(1, 2)


def _predicts_slowly(query: Any) -> bool:
    """Whether products and softmax are faster, by the lengths and in the dtypes of `_of_products`: of tensors alone.

    A graph is for every length, and has the kernel.
    """
    import torch

    from keras_bert_zoo.layers.torch_product import is_traced

    if is_traced() or torch.is_grad_enabled() or not on_cpu(query):
        return False
    return query.dtype == torch.bfloat16 or query.shape[1] < 16


def _of_products(query: Any, key: Any, value: Any, bias: Any) -> Any:
    """With the probabilities in memory: on a CPU the kernel leaves bfloat16 products aside and takes twice as long.

    So does softmax, in bfloat16 over rows that are no multiple of its 32, in float32 over less than its 16.
    """
    import torch

    batch, length, heads, dim = query.shape
    dtype = query.dtype
    query, key, value = (part.transpose(1, 2).reshape(-1, length, dim) for part in (query, key, value))
    shape = batch, heads, length, length
    start = query.new_zeros(1).expand(shape) if bias is None else bias.expand(shape)
    scores = torch.baddbmm(start.reshape(-1, length, length), query, key.transpose(1, 2), alpha=dim**-0.5)
    if length < 16:
        scores = torch.nn.functional.pad(scores, (0, 16 - length), value=float("-inf"))
    scores = torch.softmax(scores, -1, dtype=torch.float32 if length % 32 else None)[..., :length]
    context = torch.bmm(scores.to(dtype), value)
    return context.view(batch, heads, length, dim).transpose(1, 2)


def _in_jax(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> Any:
    import jax

    attend = jax.nn.dot_product_attention
    batch, length = query.shape[:2]
    if on_cpu(query):
        if query.dtype == "float16":  # XLA has no float16 product with a float32 sum there.
            query, key, value = (tensor.astype("float32") for tensor in (query, key, value))
    elif length % 2 == 0:  # With a mask cuDNN has no gradient of an odd length, and says so too late to go on.
        # Its flash attention wants the mask of each pair.
        pairs = None if mask is None else jax.numpy.broadcast_to(mask, (batch, 1, length, length))
        try:
            return attend(query, key, value, mask=pairs, is_causal=causal, implementation="cudnn")
        except (NotImplementedError, RuntimeError, ValueError):
            pass  # Of float32, of wide heads, of TPUs and older cards it has none: JAX raises one of these.
    return attend(query, key, value, mask=mask, is_causal=causal)

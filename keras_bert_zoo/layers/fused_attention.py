"""The backend's fused attention, which keeps no probabilities in memory where the device has a kernel for it."""

from importlib.util import find_spec
from typing import Any

import keras
from keras import ops

from keras_bert_zoo.on_cpu import on_cpu

_HAS_TRITON = find_spec("triton") is not None
_FEW_SCORES = 2**24


def fused_attention(
    qkv: Any, mask: Any, causal: bool, dropout: float = 0.0, seeds: Any = None, bias: Any = None
) -> Any:
    """Return softmax(q k^T / sqrt(d)) v, in the backend's fastest way that does not return the probabilities.

    Args:
        qkv: `[batch, length, 3, heads, head_dim]`.
        mask: bool `[batch, 1, 1, length]`, True at the keys to attend to, or None.
        causal: If True, each position attends only to itself and earlier ones.
        dropout: Dropout rate of the probabilities; only where `drops_out(qkv, causal)`.
        seeds: Keras' seed generator, used for dropout on JAX.
        bias: `[3, heads, head_dim]`, added to `qkv` first; only with dropout, and by `own_kernels` on JAX.

    Returns:
        `[batch, length, heads, head_dim]`.
    """
    backend = keras.backend.backend()
    if dropout and (kernels := own_kernels(qkv, causal)):
        drawn_with = [seeds.next(), bias] if backend == "jax" else []  # PyTorch has its own state.
        return kernels.attention(qkv, None if mask is None else mask[:, 0, 0], dropout, *drawn_with)
    if backend == "torch":
        query, key, value = qkv.unbind(2)  # Its gradient is one array, written once.
        return _in_torch(query, key, value, mask, causal, dropout)
    query, key, value = (qkv[:, :, i] for i in range(3))
    if backend == "jax":
        return _in_jax(query, key, value, mask, causal)
    return ops.dot_product_attention(query, key, value, mask=mask, is_causal=causal)


def fused_attention_pays(qkv: Any, causal: bool, dropout: float, training: bool | None) -> bool:
    """Whether there is a kernel for this call that is faster than separate operations."""
    if keras.backend.backend() == "tensorflow":
        return False  # It has none: Keras composes einsums with needless transposes.
    if keras.backend.backend() == "jax" and on_cpu(qkv) and _is_small(qkv):
        return False
    return (dropout == 0 or drops_out(qkv, causal)) and not (training and _trains_slowly(qkv))


def _is_small(qkv: Any) -> bool:
    """Whether JAX's composition of einsums on a CPU, which is no kernel either, takes longer than separate operations.

    It takes 2 to 3 times as long in bfloat16, and up to twice in float32, but half as long for more than 100 MB of
    scores. For float16 it sums in float32.
    """
    batch, length, _, heads, _ = qkv.shape
    if qkv.dtype == "float16" or not (isinstance(batch, int) and isinstance(length, int)):  # Sizes of an export.
        return False
    return batch * heads * length**2 <= _FEW_SCORES


def drops_out(qkv: Any, causal: bool) -> bool:
    """Whether the kernel has fast dropout of the probabilities: PyTorch's on an accelerator, or our own."""
    return not on_cpu(qkv) and (keras.backend.backend() == "torch" or own_kernels(qkv, causal) is not None)


def own_kernels(qkv: Any, causal: bool) -> Any:
    """Return the module of our own kernels if they support this call, else None."""
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
    """Whether training is faster without a kernel: PyTorch's CPU gradient does not use its bfloat16 matmuls."""
    if keras.backend.backend() != "torch" or keras.backend.standardize_dtype(qkv.dtype) != "bfloat16":
        return False
    from keras_bert_zoo.layers.torch_product import HAS_AMX, widens

    if widens(qkv):
        return False
    # Measured: 3 times as fast at 128 tokens, equal at 512. With AMX 5 times and twice as fast.
    return on_cpu(qkv) and qkv.shape[1] <= (512 if HAS_AMX else 256)


def _in_torch(query: Any, key: Any, value: Any, mask: Any, causal: bool, dropout: float) -> Any:
    import torch

    from keras_bert_zoo.layers.torch_product import widens

    if widens(query):
        wide = query.float(), key.float(), value.float()
        return _in_torch(*wide, mask, causal, dropout).to(query.dtype)
    bias = None
    if mask is not None:
        if causal:  # PyTorch accepts `attn_mask` or `is_causal`, not both.
            length = query.shape[1]
            mask = mask & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        # -inf would make a row of padding NaN. Arithmetic needs no constant that must be copied to the device.
        bias = (mask.to(query.dtype) - 1) * (torch.finfo(query.dtype).max / 2)
    if _predicts_slowly(query) and not (causal and bias is None):
        return _of_products(query, key, value, bias)
    heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
    context = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=bias, dropout_p=dropout, is_causal=causal and bias is None
    )
    return context.transpose(1, 2)


def _predicts_slowly(query: Any) -> bool:
    """Whether `_of_products` is faster than the kernel here, in eager mode only.

    A graph serves all lengths, so it uses the kernel.
    """
    import torch

    from keras_bert_zoo.layers.torch_product import HAS_AMX, is_traced

    if is_traced() or torch.is_grad_enabled() or not on_cpu(query):
        return False
    return (query.dtype == torch.bfloat16 and not HAS_AMX) or query.shape[1] < 16


def _of_products(query: Any, key: Any, value: Any, bias: Any) -> Any:
    """Attend with the probabilities in memory.

    On a CPU without AMX the kernel uses no bfloat16 matmul and takes twice as long. Softmax also takes twice as long if
    its rows are not a multiple of 32 values in bfloat16, or have fewer than 16 values in float32. So long rows get keys
    that nobody attends to; in rows of middle length, float32 costs less than these.
    """
    import torch

    batch, length, heads, dim = query.shape
    dtype = query.dtype
    more = max(16 - length, 0) if length < 128 else -length % 32
    bias = query.new_zeros(1, 1, 1, length) if bias is None else bias
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if more:
        key, value = (torch.nn.functional.pad(part, (0, 0, 0, more)) for part in (key, value))
        bias = torch.nn.functional.pad(bias, (0, more), value=float("-inf"))
    query, key, value = (part.reshape(-1, part.shape[2], dim) for part in (query, key, value))
    start = bias.expand(batch, heads, length, -1).reshape(-1, length, length + more)
    scores = torch.baddbmm(start, query, key.transpose(1, 2), alpha=dim**-0.5)
    scores = torch.softmax(scores, -1, dtype=torch.float32 if (length + more) % 32 else None)
    context = torch.bmm(scores.to(dtype), value)
    return context.view(batch, heads, length, dim).transpose(1, 2)


def _in_jax(query: Any, key: Any, value: Any, mask: Any, causal: bool) -> Any:
    import jax

    attend = jax.nn.dot_product_attention
    batch, length = query.shape[:2]
    if on_cpu(query):
        if query.dtype == "float16":  # XLA has no float16 matmul with float32 sums there.
            query, key, value = (tensor.astype("float32") for tensor in (query, key, value))
    elif length % 2 == 0:  # With a mask, cuDNN has no gradient for odd lengths, and fails too late to fall back.
        # Its flash attention needs a mask of query-key pairs.
        pairs = None if mask is None else jax.numpy.broadcast_to(mask, (batch, 1, length, length))
        try:
            return attend(query, key, value, mask=pairs, is_causal=causal, implementation="cudnn")
        except (NotImplementedError, RuntimeError, ValueError):
            pass  # JAX raises one of these for float32, wide heads, TPUs and older GPUs.
    return attend(query, key, value, mask=mask, is_causal=causal)

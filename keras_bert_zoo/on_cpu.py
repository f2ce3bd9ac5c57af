"""Checks for implementations that were measured to be faster on a CPU only, or on some."""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import keras


def on_cpu(tensor: Any) -> bool:
    """Whether `tensor` is on a CPU; on TensorFlow, if there is no other device; on JAX, if that is its default."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
    if backend == "jax":
        return bool(jax_device().platform == "cpu")
    return backend == "torch" and tensor.device.type == "cpu"


def jax_device() -> Any:
    """Return the device to which JAX sends arrays, as in `keras.device`."""
    import jax

    chosen = jax.config.jax_default_device  # A device, the name of a platform, or None.
    if isinstance(chosen, str):
        return jax.devices(chosen)[0]
    return jax.devices()[0] if chosen is None else chosen


def is_intel() -> bool:
    """Whether this machine's processor is Intel's; Python itself names the maker on Windows alone."""
    return "GenuineIntel" in _description()


def has_amx() -> bool:
    """Whether this machine's processor multiplies bfloat16 in tiles (AMX); only Linux tells."""
    return "amx_bf16" in _description()


def has_bfloat16() -> bool:
    """Whether this machine's processor multiplies bfloat16; only Linux tells."""
    return has_amx() or "avx512_bf16" in _description()


@cache
def _description() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()

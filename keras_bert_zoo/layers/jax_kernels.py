"""Helpers for our Pallas kernels; imported on JAX only."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec

from keras_bert_zoo.on_cpu import jax_device


def is_for_gpu(dtype: Any, batch: int) -> bool:
    """Whether arrays of this dtype are on a GPU that the kernels are for, with whole texts on each device."""
    device = jax_device()
    is_hopper = device.platform == "gpu" and device.compute_capability.startswith("9.")
    return is_hopper and dtype in ("float16", "bfloat16") and batch > 0 and is_divided(batch)


def is_divided(batch: int) -> bool:
    """Whether each device has an equal share of the batch, in whole texts."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return True
    mesh = distribution.device_mesh
    devices = mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]
    return isinstance(distribution, keras.distribution.DataParallel) and batch % devices == 0


def by_share(compute: Callable[..., Any], key: Any, batches: tuple[Any, ...], weights: tuple[Any, ...] = ()) -> Any:
    """Return `compute(key, *batches, *weights)`; each device takes its share of the batches and a key of its own.

    XLA cannot partition a kernel and would give the whole batch to each device.
    """
    distribution = keras.distribution.distribution()
    if distribution is None:
        return compute(key, *batches, *weights)
    axis = distribution.batch_dim_name

    def of_share(key: Any, *arrays: Any) -> Any:
        return compute(jax.random.fold_in(key, jax.lax.axis_index(axis)), *arrays)

    share, whole = PartitionSpec(axis), PartitionSpec()
    specs = (whole, *(share for _ in batches), *(whole for _ in weights))
    mesh = distribution.device_mesh.backend_mesh
    divided = jax.shard_map(of_share, mesh=mesh, in_specs=specs, out_specs=share, check_vma=False)
    return divided(key, *batches, *weights)


def compiled(num_warps: int, num_stages: int, interpret: bool, **_: Any) -> dict[str, Any]:
    """Options of `pallas_call`: compile with Triton, or interpret on the CPU."""
    if interpret:
        return {"interpret": True}
    return {"compiler_params": triton.CompilerParams(num_warps=num_warps, num_stages=num_stages)}


def places(i: Any, size: int, length: int) -> tuple[Any, Any]:
    """Return the slice of the i-th block, and which of its places are within the length."""
    return pl.ds(i * size, size), i * size + jnp.arange(size, dtype="int32") < length

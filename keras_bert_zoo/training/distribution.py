"""Named strategies to distribute training over devices."""

import math
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import keras
import numpy as np

# The dimension of each weight that is divided among model-parallel devices (Shoeybi et al. 2019, section 3). It is the
# columns of a sub-layer's first matmul and the rows of its second, so that devices communicate once per sub-layer. For
# the token embedding and the MLM bias it is the vocabulary. Other weights are replicated. The columns of `qkv` are
# divided as stored, across query, key and value. This divides the memory and the matmul of `qkv`, and the heads are
# distributed after the matmul. Where a classifier's last block splits `qkv`, XLA moves what belongs together.
_LAYOUT: dict[str, tuple[str | None, ...]] = {
    r".*token_embedding/embeddings": ("model", None),
    r".*mlm_bias/bias": ("model",),
    r".*encoder_layer_\d+/attention/qkv/kernel": (None, "model"),
    r".*encoder_layer_\d+/attention/qkv/bias": ("model",),
    r".*encoder_layer_\d+/attention/output/kernel": ("model", None),
    r".*encoder_layer_\d+/intermediate/kernel": (None, "model"),
    r".*encoder_layer_\d+/intermediate/bias": ("model",),
    r".*encoder_layer_\d+/output/kernel": ("model", None),
}
_NAMES = {
    "tensorflow": ("tpu", "tpu:<name>", "mirrored", "multi_worker"),
    "jax": ("data_parallel", "model_parallel", "model_parallel:<devices>"),
}


def distribute(strategy: str | None = None) -> AbstractContextManager[Any]:
    """Return a scope in which a model is built and trained on many devices.

    Every batch is split among the devices, or among their groups, and the weights become those that one device would
    have trained.

    Args:
        strategy: On TensorFlow

            - `"tpu"`, the TPU of this machine, or `"tpu:<name>"`, one by its name or `grpc://` address, which trains
              from TFRecords alone;
            - `"mirrored"`, every GPU of this machine, or every logical CPU if there is none;
            - `"multi_worker"`, the machines that the environment variable `TF_CONFIG` lists, each of which runs this
              program;

            on JAX

            - `"data_parallel"`, every device, each with all weights;
            - `"model_parallel"`, every device, each with its share of the large weights, or
              `"model_parallel:<devices>"`, shares among this many devices, and batches split among groups of them;

            and on each backend None, which changes nothing.

    Raises:
        ValueError: The backend has no strategy of this name, or the devices it needs are missing.

    Example:

    ```python
    with kbz.distribute("mirrored"):
        classifier = kbz.BertTextClassifier.from_preset("bert_base", num_classes=2)
        classifier.fit(texts, labels)
    ```
    """
    if strategy is None:
        return nullcontext()
    backend = keras.backend.backend()
    known = _NAMES.get(backend, ())
    kind, colon, detail = strategy.partition(":") if isinstance(strategy, str) else (None, "", "")
    if kind not in known or (colon and (not detail or not any(other.startswith(f"{kind}:") for other in known))):
        expected = f"be None or one of {', '.join(known)}" if known else "be None"
        raise ValueError(f"`strategy` must {expected} on the {backend} backend. Received: strategy={strategy!r}")
    if backend == "jax":
        across = keras.distribution.DataParallel() if kind == "data_parallel" else _model_parallel(strategy, detail)
        return across.scope()
    if kind == "tpu":
        return _tpu(strategy, detail).scope()
    return (_mirrored() if kind == "mirrored" else _multi_worker()).scope()


def is_multi_worker(strategy: Any) -> bool:
    """Whether this process is one of several that train one model on parts of each batch (on TensorFlow)."""
    return bool(strategy.extended._in_multi_worker_mode())


def is_tpu(strategy: Any) -> bool:
    """Whether the strategy is for TPUs, for which each shape compiles a program (on TensorFlow)."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.TPUStrategy)


def calls_python(strategy: Any) -> bool:
    """Whether the hosts of the strategy's devices can call this program's Python, to make batches (on TensorFlow).

    Those of a TPU that is reached by its name or address run TensorFlow in processes of their own, as do the further
    hosts of a pod.
    """
    if not is_tpu(strategy):
        return True
    return strategy.cluster_resolver.master() in ("", "local") and strategy.extended.num_hosts == 1


def check_calls_python(model: keras.Model) -> None:
    """Refuse batches that Python makes where it cannot be called."""
    if keras.backend.backend() != "tensorflow" or calls_python(model.distribute_strategy):
        return
    strategy = model.distribute_strategy
    raise ValueError(
        '`strategy` must be "tpu", on the only host of a TPU, unless the data are TFRecords, as of `read_records`. '
        f"Received: a TPU at {strategy.cluster_resolver.master()!r}, hosts={strategy.extended.num_hosts}"
    )


def check_one_process() -> None:
    """Refuse batches of our own to several processes of JAX, each of which would feed all their rows."""
    if getattr(keras.distribution.distribution(), "_is_multi_process", False):
        import jax

        raise ValueError(
            "`x` must be a `tf.data.Dataset`, such as that of `read_records`, in several processes of JAX, which share "
            f"its batches. Received: texts, arrays or examples of `prepare` in {jax.process_count()} processes"
        )


def sum_over_workers(value: int, strategy: Any) -> int:
    """Return the sum over all devices of their worker's value; all workers must call this."""
    import tensorflow as tf

    numbers = tf.function(lambda: strategy.run(lambda: tf.constant(value, "int64")))()
    return int(strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None))


def differs_among_workers(value: int) -> bool:
    """Whether other workers have another value; all must call this, in the scope of `distribute`."""
    if keras.backend.backend() == "jax":
        from jax.experimental.multihost_utils import process_allgather

        return bool((process_allgather(np.int32(value)) != value).any())
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    return is_multi_worker(strategy) and sum_over_workers(value, strategy) != value * strategy.num_replicas_in_sync


def is_chief() -> bool:
    """Whether this process is the one to write files; call this in the scope of `distribute`."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.process_index() == 0
    if keras.backend.backend() != "tensorflow":
        return True
    import tensorflow as tf

    return bool(tf.distribute.get_strategy().extended.should_checkpoint)


def replicas(model: keras.Model) -> int:
    """Return the number of parts into which a batch is split."""
    if keras.backend.backend() == "tensorflow":
        return model.distribute_strategy.num_replicas_in_sync
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    axis = distribution.batch_dim_name
    return int(mesh.shape[mesh.axis_names.index(axis)])


def on_tpu(model: keras.Model) -> bool:
    """Whether the model's batches go to TPUs, for which shapes must be known when its steps are traced."""
    return keras.backend.backend() == "tensorflow" and is_tpu(model.distribute_strategy)


def device_count(model: keras.Model) -> int:
    """Return the number of devices that work on a step, including those that share a copy of the model."""
    if keras.backend.backend() == "tensorflow" or keras.distribution.distribution() is None:
        return replicas(model)
    return math.prod(keras.distribution.distribution().device_mesh.shape)


# --- TensorFlow: one strategy per process and name. A second one would number its reductions from the start, which
# TensorFlow would mistake for those of the first, and would restart a TPU.


@cache
def _mirrored() -> Any:
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


@cache  # Also, a process can join its cluster only once, before TensorFlow does anything else.
def _multi_worker() -> Any:
    import tensorflow as tf

    if not os.environ.get("TF_CONFIG"):
        raise ValueError(
            "`strategy` can be 'multi_worker' only if the environment variable TF_CONFIG lists the workers. "
            "Received: strategy='multi_worker' without TF_CONFIG"
        )
    return tf.distribute.MultiWorkerMirroredStrategy()


@cache
def _connected(address: str) -> Any:
    import tensorflow as tf

    return tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect(address))


def _tpu(strategy: str, address: str) -> Any:
    import tensorflow as tf

    try:
        return _connected(address or "local")
    except (ValueError, RuntimeError, OSError, ImportError, tf.errors.OpError) as error:
        reason = str(error).split("\n")[0].split(". ")[0][:200]
        raise ValueError(
            f"`strategy` must name a TPU that can be reached. Received: strategy={strategy!r} ({reason})"
        ) from error


# --- JAX


def _model_parallel(strategy: str, shares: str) -> Any:
    import jax

    devices = keras.distribution.list_devices()
    count = int(shares) if shares.isdecimal() else 0 if shares else len(devices)
    if not count or len(devices) % count:
        raise ValueError(
            f"`strategy` must ask for a number of devices that divides {len(devices)}. Received: strategy={strategy!r}"
        )
    processes = np.reshape([device.process_index for device in jax.devices()], (-1, count))
    if (processes != processes[:, :1]).any():
        raise ValueError(
            "`strategy` must share the model among devices of one process, which can then read and save it. "
            f"Received: strategy={strategy!r}, {jax.process_count()} processes of {jax.local_device_count()} devices"
        )
    mesh = keras.distribution.DeviceMesh((len(devices) // count, count), ("batch", "model"), devices)
    layout_map = keras.distribution.LayoutMap(mesh)
    for path, axes in _LAYOUT.items():
        layout_map[path] = axes
    return _WhereItDivides(layout_map=layout_map, batch_dim_name="batch")


class _WhereItDivides(keras.distribution.ModelParallel):
    """`ModelParallel` that replicates a weight if the devices do not divide it, such as 30,522 tokens among four."""

    def get_variable_layout(self, variable: Any) -> Any:
        layout = super().get_variable_layout(variable)
        sizes = dict(zip(self.device_mesh.axis_names, self.device_mesh.shape, strict=True))
        if any(axis and size % sizes[axis] for axis, size in zip(layout.axes, variable.shape, strict=True)):
            return keras.distribution.TensorLayout((None,) * len(variable.shape), self.device_mesh)
        return layout

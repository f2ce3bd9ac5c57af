"""Where spellings apply that have been measured to be the faster ones on a CPU, and on nothing else."""

from typing import Any

import keras


def on_cpu(tensor: Any) -> bool:
    """Whether `tensor` is worked on by a CPU; on TensorFlow and JAX whether there is nothing else."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())
    if backend == "jax":
        import jax

        return jax.default_backend() == "cpu"
    return backend == "torch" and tensor.device.type == "cpu"

"""FLOPs of a training step, and the FLOP/s that the device can do."""

import os
import time
from typing import Any

import keras

from keras_bert_zoo.training.devices import peak_of
from keras_bert_zoo.training.distribution import is_tpu


def training_flops(architecture: dict[str, Any], sequence_length: float, predictions: float = 0) -> float:
    """Return the floating-point operations of one example's training step, forward and backward.

    Only matmuls count, a multiplication and an addition as two operations, and the backward pass as two forward passes.
    BERT-base needs 6.99e10 at 128 tokens with 20 predictions. Every block counts at every token, for comparison with
    others' figures. Our last block computes only what the heads read, which is 5 % less in this example.

    Args:
        architecture: `BertBackbone.architecture`.
        sequence_length: Number of tokens, without padding.
        predictions: Number of masked tokens, the only ones at which the head is computed; 0 without such a head.
    """
    width, inner = architecture["hidden_dim"], architecture["intermediate_dim"]
    projections = 4 * width * width + 2 * width * inner
    scores = 2 * width * sequence_length  # Queries by keys, and probabilities by values.
    encoder = architecture["num_layers"] * sequence_length * (projections + scores)
    head = predictions * (width * width + width * architecture["vocabulary_size"])
    pooler = width * width if architecture["pooler"] else 0
    return 3 * 2 * (encoder + head + pooler)


def peak_flops(dtype: str) -> float | None:
    """Return the FLOP/s of this process' device for matmuls in `dtype`; call this in the scope of `distribute`.

    For an accelerator in half precision they are the data sheet's. Otherwise they are measured: those of the fastest of
    some matmuls, which together take little more than two seconds. On TensorFlow, where a matmul would run beside the
    TPU, those of a TPU are the data sheet's or None.
    """
    name = _device_name()
    printed = peak_of(name) if dtype in ("float16", "bfloat16") else None
    if printed or _is_tpu_on_tensorflow():
        return printed
    size = 8192 if name else 1024
    matrix = keras.ops.cast(keras.random.normal((size, size), seed=0), dtype)
    spent = [_seconds(matrix), _seconds(matrix)]  # The first one also starts the library.
    while len(spent) < 10 and sum(spent) < 2:  # A CPU without instructions for bfloat16 takes seconds for one.
        spent.append(_seconds(matrix))
    return 2 * size**3 / min(spent)


def _seconds(matrix: Any) -> float:
    start = time.perf_counter()
    product = _product(matrix)
    keras.ops.convert_to_numpy(keras.ops.cast(product[0, 0], "float32"))  # Waits for the product.
    return time.perf_counter() - start


def _product(matrix: Any) -> Any:
    if keras.backend.backend() != "jax" or matrix.dtype != "bfloat16":
        return keras.ops.matmul(matrix, matrix)
    import jax

    # With bfloat16 as the product's type XLA would multiply float32 on a CPU.
    return jax.numpy.matmul(matrix, matrix, preferred_element_type="float32")


def _device_name() -> str:
    """Return the accelerator's name, or an empty string."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        device = jax.devices()[0]
        return "" if device.platform == "cpu" else device.device_kind
    if backend == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    import tensorflow as tf

    if _is_tpu_on_tensorflow():  # TensorFlow does not know which; such as "v5litepod-8", of eight chips.
        return "TPU " + os.environ.get("TPU_ACCELERATOR_TYPE", "").partition("-")[0]
    devices = tf.config.list_physical_devices("GPU")
    if not devices:
        return ""
    return tf.config.experimental.get_device_details(devices[0]).get("device_name", devices[0].device_type)


def _is_tpu_on_tensorflow() -> bool:
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return is_tpu(tf.distribute.get_strategy())

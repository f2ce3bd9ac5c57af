"""The formats that a model can be exported to, and what each backend can write."""

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

import keras

from keras_bert_zoo.files import check_local


class Format(NamedTuple):
    """Requirements of an export format.

    Attributes:
        suffixes: Suffixes of its files, the path's first; empty for a directory.
        needs: The modules that each supported backend needs.
        lacks: Why other backends are not supported.
        fixed_length: The backends whose files accept one length only.
    """

    suffixes: tuple[str, ...]
    needs: dict[str, tuple[str, ...]]
    lacks: dict[str, str] = {}
    fixed_length: tuple[str, ...] = ()


_ONNX: dict[str, tuple[str, ...]] = {
    "tensorflow": ("onnx", "tf2onnx", "onnxscript"),
    "jax": ("onnx", "jax2onnx"),
    "torch": ("onnx", "onnxscript"),
}
_OWN = "it is PyTorch's own"

# jax2onnx 0.17 loses a symbolic length in `arange`. litert-torch 0.10 needs, through xdsl, an older typing-extensions.
FORMATS = {
    "tf_saved_model": Format(
        (),
        {"tensorflow": ("tensorflow",), "jax": ("tensorflow",)},
        {"torch": "Keras' SavedModel of PyTorch takes no dict of inputs and needs torch-xla"},
    ),
    "onnx": Format((".onnx",), _ONNX, fixed_length=("jax",)),
    "openvino": Format(
        (".xml", ".bin"),
        {backend: ("openvino", *modules) for backend, modules in _ONNX.items()},
        fixed_length=("jax",),
    ),
    "litert": Format(
        (".tflite",),
        {"tensorflow": ("tensorflow",)},
        {
            "jax": "Keras' LiteRT export does not support JAX",
            "torch": "litert-torch fixes the batch at one and wants packages that conflict with Jupyter's",
        },
        fixed_length=("tensorflow",),
    ),
    "torch": Format((".pt2",), {"torch": ("torch",)}, {"tensorflow": _OWN, "jax": _OWN}),
}


_ONE_SIZE = "PyTorch's exporter follows it for one batch and length only"
_ONE_WAY = "jax2onnx has no loop that runs backwards"
_NO_LOOPS = {
    ("onnx", "jax"): _ONE_WAY,
    ("onnx", "torch"): _ONE_SIZE,
    ("openvino", "tensorflow"): "OpenVINO cannot read the loops that tf2onnx writes",
    ("openvino", "jax"): _ONE_WAY,
    ("openvino", "torch"): _ONE_SIZE,
    ("litert", "tensorflow"): "the converter leaves it to operations of TensorFlow that LiteRT lacks",
    ("torch", "torch"): _ONE_SIZE,
}
"""(format, backend) -> why a BiLSTM cannot be exported."""

_NO_NUMBERS = {
    ("torch", "int4"): ("PyTorch's exporter takes integers from floating-point numbers", "torch"),
    ("tensorflow", "float8"): ("tf2onnx has no such numbers", "tf_saved_model"),
}
"""(backend, quantization mode) -> why ONNX and OpenVINO cannot hold it, and a format that can."""


Axes = dict[str, tuple[str | int, ...]]
"""Input name -> names of its axes, or sizes where they are fixed. Axes with the same name have the same size."""


def check_format(path: str | os.PathLike[str], format: str) -> Path:
    """Return the path if this backend and the installed packages can write the format there."""
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {list(FORMATS)}. Received: format={format!r}")
    check_local(filepath=path)
    suffixes, needs, lacks, _ = FORMATS[format]
    if suffixes and Path(path).suffix != suffixes[0]:
        raise ValueError(f'`filepath` must end with {suffixes[0]} for format="{format}". Received: {str(path)!r}')
    if suffixes and Path(path).exists() and not Path(path).is_file():
        received = "a directory" if Path(path).is_dir() else "a pipe or a device"
        raise ValueError(f'`filepath` must be a file for format="{format}". Received: {str(path)!r}, {received}')
    backend = keras.backend.backend()
    if backend not in needs:
        raise ValueError(
            f'`format="{format}"` needs the {" or ".join(needs)} backend, because '
            f"{lacks.get(backend, 'this one only predicts')}: call save_to_preset() or save(), and export there "
            f"(KERAS_BACKEND={next(iter(needs))}). Received: the {backend} backend"
        )
    missing = [module for module in needs[backend] if importlib.util.find_spec(module) is None]
    if missing:
        extra = "tensorflow" if missing == ["tensorflow"] else "export-jax" if "jax2onnx" in missing else "export"
        raise ValueError(
            f'`format="{format}"` needs {" and ".join(missing)}: pip install "keras-bert-zoo[{extra}]". '
            f"Received: format={format!r}"
        )
    return Path(path)


def check_model(model: keras.Model, format: str, axes: Axes) -> None:
    """Refuse what a format's exporter on this backend cannot write, or writes as a file that no runtime opens."""
    backend = keras.backend.backend()
    recurrent = next((layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.RNN)), None)
    if recurrent is not None and (format, backend) in _NO_LOOPS:
        raise ValueError(
            f'`format="{format}"` cannot export a loop over tokens on this backend, because '
            f'{_NO_LOOPS[format, backend]}; use "tf_saved_model" on TensorFlow or JAX, or "onnx" on TensorFlow. '
            f"Received: a model with {recurrent.path}"
        )
    if backend == "jax" and format in ("onnx", "openvino") and any("choices" in sizes for sizes in axes.values()):
        raise ValueError(
            f'`format="{format}"` cannot export choices on this backend, because jax2onnx reshapes to at most one '
            "unknown size: export on TensorFlow or PyTorch. Received: a model of choices"
        )
    if backend == "jax" and format in ("onnx", "openvino") and "mask_positions" in axes and len(model.outputs) > 1:
        raise ValueError(
            f'`format="{format}"` cannot export both tasks of pre-training on this backend, because jax2onnx loses a '
            "size that is an unknown one plus 1, as of masked tokens and [CLS]: export on TensorFlow or PyTorch. "
            f"Received: a model with {' and '.join(sorted(model.output))}"
        )
    tables = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    if backend == "torch" and format in ("onnx", "openvino") and any(table.quantization_mode for table in tables):
        raise ValueError(
            f'`format="{format}"` takes no quantized embeddings on the torch backend, because its exporter writes a '
            'look-up that no runtime can open: quantize with filters="attention|intermediate|output", or export on '
            "TensorFlow or JAX. Received: a model with them"
        )
    for mode in sorted({str(getattr(layer, "quantization_mode", None)) for layer in model._flatten_layers()}):
        if format in ("onnx", "openvino") and (backend, mode) in _NO_NUMBERS:
            reason, other = _NO_NUMBERS[backend, mode]
            raise ValueError(
                f'`format="{format}"` cannot export {mode} on the {backend} backend, because {reason}; '
                f'"{other}" can. Received: a model quantized to {mode}'
            )

"""Export to the formats of other runtimes, where Keras' own export needs help."""

import importlib.util
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_bert_zoo.files import clear_leftovers, directory_beside, replacing, write_directory
from keras_bert_zoo.layers.activations import gelu_of_erfc, gelu_of_products, gelu_spelled


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
    "tensorflow": ("onnx", "tf2onnx"),
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


class Texts(NamedTuple):
    """How a SavedModel converts strings to a model's inputs.

    Attributes:
        tokenizer: A `tf.Module`, saved with the model.
        pack: Converts string tensors `[batch]`, one per column, to the model's inputs.
        columns: Names of the columns.
    """

    tokenizer: Any
    pack: Callable[..., dict[str, Any]]
    columns: tuple[str, ...]


Axes = dict[str, tuple[str | int, ...]]
"""Input name -> names of its axes, or sizes where they are fixed. Axes with the same name have the same size."""


def check_format(path: str | os.PathLike[str], format: str) -> Path:
    """Return the path if this backend and the installed packages can write the format there."""
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {list(FORMATS)}. Received: format={format!r}")
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


def write_model(
    model: keras.Model,
    path: Path,
    format: str,
    axes: Axes,
    longest: dict[str, int],
    texts: Texts | None = None,
    options: dict[str, Any] | None = None,
) -> None:
    """Write a functional model whose inputs are a dict, completely or not at all.

    Args:
        model: The model.
        path: Target path; see `check_format`.
        format: One of `FORMATS`.
        axes: What is known of its inputs' shapes.
        longest: Largest size of each axis that has one.
        texts: For a SavedModel that takes strings.
        options: Additional arguments of the exporter.
    """
    _check_exportable(model, format, axes)
    options = options or {}
    if format == "tf_saved_model":

        def write(folder: Path) -> None:
            with gelu_spelled(gelu_of_erfc) if keras.backend.backend() == "jax" else nullcontext():
                _write_saved_model(model, folder, axes, longest, texts, options)

        write_directory(path, marker="saved_model.pb", owned=("variables", "assets", "fingerprint.pb"), write=write)
        return
    writers = {"onnx": _write_onnx, "openvino": _write_openvino, "litert": _write_litert, "torch": _write_torch}
    path = Path(os.path.realpath(path))  # Other files lie beside the model, not beside a link to it.
    making = path.with_name(f"{path.name}.export")
    clear_leftovers(making)
    with directory_beside(making) as folder, ExitStack() as files:
        writers[format](model, folder / path.name, axes, longest, options)
        # ONNX keeps large weights in a file that the model names. The model is entered first, so it is replaced last.
        for file in sorted(folder.iterdir(), key=lambda file: file.name != path.name):
            shutil.move(file, files.enter_context(replacing(path.with_name(file.name))))


def _check_exportable(model: keras.Model, format: str, axes: Axes) -> None:
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


def _write_saved_model(
    model: keras.Model,
    folder: Path,
    axes: Axes,
    longest: dict[str, int],
    texts: Texts | None,
    options: dict[str, Any],
) -> None:
    import tensorflow as tf

    archive = keras.export.ExportArchive()
    if keras.backend.backend() == "jax":
        # Keras would give each input a length of its own, and JAX gradients cannot be saved.
        lengths = [f"{name} <= {size}" for name, size in longest.items()]
        shapes = {name: f"({', '.join(map(str, sizes))})" for name, sizes in axes.items()}
        jax2tf = {"with_gradient": False, "polymorphic_shapes": [shapes], "polymorphic_constraints": lengths}
        options = {"jax2tf_kwargs": jax2tf, **options}
    # The first endpoint is the default unless another is named `serving_default`.
    run = archive.track_and_add_endpoint("serve" if texts is None else "serve_tokens", model, _specs(axes), **options)
    if texts is not None:
        signature = [tf.TensorSpec([None], tf.string, name=column) for column in texts.columns]
        serve = tf.function(lambda *x: run(texts.pack(*x)), input_signature=signature, autograph=False)
        serve.get_concrete_function()
        archive.track(texts.tokenizer)
        for name in ("serve", "serving_default"):
            archive.add_endpoint(name, serve)
    archive.write_out(str(folder), verbose=False)


def _write_onnx(model: keras.Model, path: Path, axes: Axes, longest: dict[str, int], options: dict[str, Any]) -> None:
    # Outputs keep the model's names; an unnamed one is called as in Keras' SavedModels.
    with gelu_spelled(gelu_of_products):
        if keras.backend.backend() == "tensorflow":
            outputs = model.output if isinstance(model.output, dict) else {"output_0": model.output}
            _export(keras.Model(model.input, outputs), path, "onnx", axes, options)
            return
        if keras.backend.backend() == "jax":
            _write_onnx_of_jax(model, path, axes, options)
            return
        import torch

        # Keras 3.15 uses PyTorch's older exporter, which fails on LayerNorm.
        program = _program(model, axes, longest, {})
        places: Any = program.call_spec.out_spec.unflatten(range(program.call_spec.out_spec.num_leaves))
        torch.onnx.export(
            program,
            input_names=list(axes),
            output_names=sorted(places, key=places.__getitem__) if isinstance(places, dict) else ["output_0"],
            dynamo=True,
            verbose=False,
            **options,
        ).save(str(path))


def _write_onnx_of_jax(model: keras.Model, path: Path, axes: Axes, options: dict[str, Any]) -> None:
    """Call jax2onnx directly: through Keras 3.15 the outputs have no names."""
    import jax
    import jax2onnx

    def run(*arrays: Any) -> Any:
        return model(dict(zip(axes, arrays, strict=True)), training=False)

    jax2onnx.to_onnx(
        run,
        inputs=[jax.ShapeDtypeStruct(sizes, "int32") for sizes in axes.values()],
        input_names=list(axes),
        # JAX sorts the keys of a dict.
        output_names=sorted(model.output) if isinstance(model.output, dict) else ["output_0"],
        return_mode="file",
        output_path=path,
        **{"opset" if name == "opset_version" else name: value for name, value in options.items()},
    )


def _write_openvino(
    model: keras.Model, path: Path, axes: Axes, longest: dict[str, int], options: dict[str, Any]
) -> None:
    """Convert by way of ONNX: Keras 3.15 writes surplus or unnamed outputs."""
    import openvino

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        onnx = Path(folder) / "model.onnx"
        _write_onnx(model, onnx, axes, longest, options)
        openvino.save_model(openvino.convert_model(onnx), path, compress_to_fp16=False)


def _write_litert(model: keras.Model, path: Path, axes: Axes, longest: dict[str, int], options: dict[str, Any]) -> None:
    with gelu_spelled(gelu_of_products):
        _export(model, path, "litert", axes, options)


def _write_torch(model: keras.Model, path: Path, axes: Axes, longest: dict[str, int], options: dict[str, Any]) -> None:
    import torch

    torch.export.save(_program(model, axes, longest, options), path)


def _export(model: keras.Model, path: Path, format: str, axes: Axes, options: dict[str, Any]) -> None:
    signature = _specs(axes)
    keras.Model.export(model, str(path), format=format, verbose=False, input_signature=signature, **options)


def _specs(axes: Axes) -> list[dict[str, keras.InputSpec]]:
    def spec(name: str, sizes: Sequence[str | int]) -> keras.InputSpec:
        shape = tuple(size if isinstance(size, int) else None for size in sizes)
        return keras.InputSpec(shape=shape, dtype="int32", name=name)

    return [{name: spec(name, sizes) for name, sizes in axes.items()}]


@contextmanager
def _lists_kept(model: keras.Model) -> Iterator[None]:
    """Restore the layers' list attributes, which PyTorch's exporter (2.13) replaces by copies.

    Keras does not write to the copies: what `quantize` adds later would be missing from `weights` and from files.
    """
    layers = model._flatten_layers()
    lists = [
        (layer, {name: value for name, value in vars(layer).items() if isinstance(value, list)}) for layer in layers
    ]
    try:
        yield
    finally:
        for layer, own in lists:
            vars(layer).update(own)


def _program(model: keras.Model, axes: Axes, longest: dict[str, int], options: dict[str, Any]) -> Any:
    """Return the model as a `torch.export.ExportedProgram` for any batch size and length."""
    import torch

    names = {size for sizes in axes.values() for size in sizes if isinstance(size, str)}
    dims = {name: torch.export.Dim(name, max=longest.get(name)) for name in names}
    shapes = {name: {i: dims[size] for i, size in enumerate(sizes) if size in dims} for name, sizes in axes.items()}
    sample = {  # PyTorch treats a size of 1 as constant.
        name: keras.ops.ones([size if isinstance(size, int) else 2 for size in sizes], dtype="int32")
        for name, sizes in axes.items()
    }
    with warnings.catch_warnings(), _lists_kept(model):
        warnings.filterwarnings("ignore", message=".*not properly registered as a submodule")  # Keras' variables.
        return torch.export.export(model, (sample,), dynamic_shapes=[(shapes,)], **{"strict": False, **options})

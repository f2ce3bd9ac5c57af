"""Export to the formats of other runtimes, where Keras' own export needs help."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_bert_zoo.export_formats import Axes, check_model
from keras_bert_zoo.files import clear_leftovers, directory_beside, replacing, write_directory
from keras_bert_zoo.layers.activations import gelu_of_erfc, gelu_of_products, gelu_spelled


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
    check_model(model, format, axes)
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
            from keras_bert_zoo.export_rewrites import LAYER_NORM_OPSET, join_operations

            outputs = model.output if isinstance(model.output, dict) else {"output_0": model.output}
            options = {"opset_version": LAYER_NORM_OPSET, **options}
            _export(keras.Model(model.input, outputs), path, "onnx", axes, options)
            join_operations(path)
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

"""The `export` method, which describes a model's inputs to `keras_bert_zoo.export`."""

import os
from functools import partial
from typing import Any, ClassVar

import keras

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.export import Texts, write_model
from keras_bert_zoo.export_formats import FORMATS, Axes, check_format
from keras_bert_zoo.models.inputs import INPUT_NAMES
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.models.quantized import quantized_layers

_HALF_PRECISION = ("tf_saved_model", "torch")


class Exports:
    """Mixin for a backbone, or a functional model over one: `export`, from raw text where possible."""

    input: dict[str, Any]
    pairs_only: ClassVar[bool] = False

    def export(
        self,
        filepath: str | os.PathLike[str],
        format: str = "tf_saved_model",
        sequence_length: int | None = None,
        pairs: bool | None = None,
        verbose: Any = None,
        **options: Any,
    ) -> None:
        """Write the model for another runtime; on failure nothing is written.

        | `format` | backends | `filepath` | batch | length |
        |---|---|---|---|---|
        | `"tf_saved_model"`, TensorFlow and TF Serving | TensorFlow, JAX | a directory | any | any |
        | `"onnx"`, ONNX Runtime | all | `.onnx` | any | any; `sequence_length` on JAX |
        | `"openvino"`, OpenVINO | all | `.xml`, and a `.bin` beside it | any | any; `sequence_length` on JAX |
        | `"litert"`, LiteRT (TFLite) | TensorFlow | `.tflite` | any | `sequence_length` |
        | `"torch"`, `torch.export` | PyTorch | `.pt2` | any | any |

        A SavedModel of a task with a `BertPreprocessor` takes strings: its default signature has the input `text`, or
        `first` and `second`, string `[batch]`; the signature `serve_tokens` takes ready arrays. Import
        `tensorflow_text` before loading it; a server must have its operations built in. All other inputs are int32
        arrays with the names of the model's inputs. A BiLSTM can be exported only to a SavedModel and, from TensorFlow,
        to ONNX.

        Outputs equal the model's, within rounding. They keep their names; a single output is `output_0`. OpenVINO
        computes in bfloat16 if the processor supports it, unless `INFERENCE_PRECISION_HINT` is `"f32"`.

        Args:
            filepath: Path to write to; a SavedModel in this directory is replaced.
            format: One of the above.
            sequence_length: Fixed length in tokens of ready arrays, which must be padded to it. If the format needs a
                fixed length, the default is the preprocessor's, or the backbone's maximum.
            pairs: Whether a SavedModel's strings are pairs; None means False, or True for a task that takes only pairs.
            verbose: If True, print what was written.
            **options: Passed to the exporter: `opset_version` for ONNX, `optimizations` and others for the TFLite
                converter, `strict` and others for `torch.export`.

        Raises:
            ValueError: The backend or installed packages cannot write the format, or an argument is invalid.

        Example:

        ```python
        classifier.export("serving/1")
        import tensorflow as tf, tensorflow_text    # in another process
        served = tf.saved_model.load("serving/1")    # keep it: its signatures lose their variables without it
        served.serve(tf.constant(["a charming journey"]))
        ```
        """
        path = check_format(filepath, format)
        if "input_signature" in options:
            raise ValueError("`input_signature` is the model's own; sequence_length fixes the length. Received: one")
        backbone: Any = getattr(self, "backbone", self)
        backbones = [member.backbone for member in getattr(self, "members", ())] or [backbone]
        policies = [each.embeddings.dtype_policy for each in backbones]
        other = next((policy for policy in policies if policy.compute_dtype != "float32"), None)
        if other is not None and format not in _HALF_PRECISION:
            raise ValueError(f'`format="{format}"` needs a float32 model. Received: one of {other.name}')
        if format == "litert" and quantized_layers(self):
            raise ValueError(
                '`format="litert"` needs a model before quantize(): the converter has `optimizations` of its own. '
                "Received: a quantized model"
            )
        positions = backbone.architecture["max_sequence_length"]
        texts = self._texts(sequence_length, pairs) if format == "tf_saved_model" else None
        if texts is None and pairs is not None:
            raise ValueError(
                f"`pairs` must be None if the export takes no strings, as with this task's {format}. "
                f"Received: pairs={pairs!r}"
            )
        if sequence_length is None and keras.backend.backend() in FORMATS[format].fixed_length:
            preprocessor = getattr(self, "preprocessor", None)
            sequence_length = positions if preprocessor is None else preprocessor.sequence_length
        if sequence_length is not None:
            check_positive_int(sequence_length=sequence_length)
            if sequence_length > positions:
                raise ValueError(
                    f"`sequence_length` must be at most max_sequence_length={positions}. "
                    f"Received: sequence_length={sequence_length}"
                )
        write_model(self, path, format, self._axes(sequence_length), {"length": positions}, texts, options)
        if verbose:
            print(f"Saved artifact at '{filepath}'.")

    def _axes(self, sequence_length: int | None) -> Axes:
        length = "length" if sequence_length is None else sequence_length
        axes: Axes = {}
        for name, tensor in self.input.items():
            rank = len(tensor.shape)
            if name in INPUT_NAMES:
                axes[name] = ("batch", length) if rank == 2 else ("batch", "choices", length)
            else:
                axes[name] = ("batch", *(f"{name}_{i}" for i in range(1, rank)))
        return axes

    def _texts(self, sequence_length: int | None, pairs: bool | None) -> Texts | None:
        preprocessor = getattr(self, "preprocessor", None)
        # Accept exactly this class: those of other tasks, and users' own, process text differently.
        if type(preprocessor) is not BertPreprocessor or set(self.input) != set(INPUT_NAMES):
            return None
        if sequence_length is not None:
            raise ValueError(
                "`sequence_length` must be None if the export takes strings: the preprocessor has one. "
                f"Received: sequence_length={sequence_length}"
            )
        task: Any = self
        pairs = self.pairs_only if pairs is None else pairs
        task.check_pairs(pairs)
        tokenizer = preprocessor.tokenizer.in_graph()
        length = {"sequence_length": preprocessor.sequence_length, "static_lengths": task.static_lengths}
        return Texts(tokenizer, partial(tokenizer.pack, **length), ("first", "second") if pairs else ("text",))

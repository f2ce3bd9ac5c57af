"""An ONNX model in int8, by ONNX Runtime's own tool."""

from pathlib import Path


def quantized(path: Path) -> Path:
    """Return the path of the model in int8, beside it: a scale for each column of a kernel and for each activation."""
    from onnxruntime.quantization import quantize_dynamic

    int8 = path.with_suffix(".int8.onnx")
    quantize_dynamic(path, int8, per_channel=True)
    return int8

"""What a contender's process reports: its framework's threads, peak and device, and its memory."""

import importlib
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def quantized(path: Path) -> Path:
    """Return the path of an ONNX model in int8, beside it, by ONNX Runtime's own tool.

    There is a scale for each column of a kernel and for each activation.
    """
    from onnxruntime.quantization import quantize_dynamic

    int8 = path.with_suffix(".int8.onnx")
    quantize_dynamic(path, int8, per_channel=True)
    return int8


def timed(work: Callable[..., object], *data: Any) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work(*data)
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def threads(framework: str) -> str:
    if framework == "torch":
        import torch

        return f"torch {torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between"
    if framework == "tensorflow":
        import tensorflow as tf

        threading = tf.config.threading
        within, between = threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()
        return f"tensorflow {within} in an operation, {between} between (0: one a core)"
    if framework == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        within, between = options.intra_op_num_threads, options.inter_op_num_threads
        return f"onnxruntime {within} in an operation, {between} between (0: one a core)"
    return f"{framework} as it chooses"


def device_name(framework: str, device: str) -> str:
    """Return the card that the framework computes on, or `""` for `"cpu"`.

    Raises:
        RuntimeError: The framework has none, and would compute elsewhere.
    """
    if device == "cpu":
        return ""
    if framework == "torch":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name()
    elif framework == "jax":
        import jax

        if jax.default_backend() == "gpu":
            return jax.devices()[0].device_kind
    elif framework == "tensorflow":
        import tensorflow as tf

        for card in tf.config.list_physical_devices("GPU"):
            return tf.config.experimental.get_device_details(card)["device_name"]
    raise RuntimeError(f"{framework} must see a GPU. Received: an environment in which it has none")


def peak(framework: str, dtype: str, device: str = "cpu") -> float:
    """Return the FLOP/s of the framework's own product of two large matrices, the fastest of some.

    Ask for it before or after a card's memory is measured: on a card the matrices take 0.2 to 0.6 GB.
    """
    size = 2048 if device == "cpu" else 4096 if dtype == "float32" else 8192
    at_once = 1 if device == "cpu" else 10  # Else much of the time is what the host takes to start and to wait.
    works = _products(framework, dtype, device, size)
    for work in works:
        work(at_once)
    seconds = [timed(work, at_once)["seconds"] for work in works for _ in range(8 // len(works))]
    return 2 * size**3 * at_once / min(seconds)


def _products(framework: str, dtype: str, device: str, size: int) -> list[Callable[[int], Any]]:
    """Return functions that each compute a product as often as they are told, and wait for it."""
    import numpy as np

    values = np.random.default_rng(0).standard_normal((size, size), "float32")  # Ones take less power, so run faster.
    if dtype == "int8" and framework != "onnxruntime":  # Which rounds them itself.
        values = np.clip(values * 40, -127, 127)
    if framework == "torch":
        import torch

        matrix = torch.tensor(values, dtype=getattr(torch, dtype), device="cuda" if device == "gpu" else "cpu")
        wait = torch.cuda.synchronize if device == "gpu" else lambda: None
        products = [_in_int8(framework, matrix.float(), matrix) if dtype == "int8" else lambda: matrix @ matrix]
        if device == "cpu" and dtype == "float32" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            # oneDNN's, which keras_bert_zoo takes on AMD's processors, as torch.compile does; the other is BLAS'.
            products.append(lambda: torch.ops.mkldnn._linear_pointwise(matrix, matrix.T, None, "none", [], ""))
        return [lambda count, product=product: (_repeat(product, count), wait()) for product in products]
    if framework == "jax":
        import jax

        array = jax.numpy.asarray(values, dtype)
        # With bfloat16 as the product's type XLA multiplies float32 on a CPU; keras_bert_zoo takes the other.
        kinds = {"int8": ["int32"], "bfloat16": ["bfloat16", "float32"]}.get(dtype, [dtype])
        jitted = [jax.jit(partial(jax.numpy.matmul, preferred_element_type=kind)) for kind in kinds]
        return [lambda count, f=f: _repeat(lambda: f(array, array), count).block_until_ready() for f in jitted]
    if framework == "tensorflow":
        import tensorflow as tf

        tensor = tf.cast(values, dtype)
        work = partial(tf.matmul, tensor, tensor)
        if dtype == "int8":
            work = tf.function(_in_int8(framework, tf.cast(tensor, "float32"), tensor), autograph=False)
        # Waits for it, and brings one number.
        return [lambda count: _repeat(work, count)[0, 0].numpy()]
    if framework == "openvino":
        import openvino
        from openvino import opset13

        given = opset13.parameter((size, size), np.float32)
        graph = openvino.Model([opset13.matmul(given, given, False, False)], [given])
        compiled = openvino.compile_model(graph, "CPU")  # In bfloat16 where the processor can.
        return [lambda count: _repeat(lambda: compiled(values), count)]
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (size, size)) for name in "xy")
    product = helper.make_node("MatMul", ["x", "kernel"], ["y"])  # A constant: only such a one is made int8.
    one = helper.make_graph([product], "product", [x], [y], [numpy_helper.from_array(values, "kernel")])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "product.onnx")
        onnx.save(helper.make_model(one, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
        if dtype == "int8":
            path = quantized(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [lambda count: _repeat(lambda: session.run(None, {"x": values}), count)]


def _in_int8(framework: str, whole: Any, kernel: Any) -> Callable[[], Any]:
    """Return our product, as the frameworks have none for every processor; only our contender is asked for it."""
    product = importlib.import_module(f"keras_bert_zoo.layers.{framework}_int8").sums
    return lambda: product(whole, kernel)


def _repeat(product: Callable[[], Any], count: int) -> Any:
    for _ in range(count - 1):
        product()
    return product()


def half_precision_attention() -> None:
    """Let PyTorch's attention with dropout multiply in bfloat16 on a CPU; otherwise it does so in float32."""
    import torch

    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # Also for CPUs.


def tensor_float32(framework: str, device: str) -> None:
    """Let PyTorch multiply float32 on a card as JAX and TensorFlow do unless told otherwise, in TF32."""
    if framework == "torch" and device == "gpu":
        import torch

        torch.set_float32_matmul_precision("high")


def memory(framework: str, device: str = "cpu") -> int:
    """Return the most bytes so far, of the process or of what its framework took of the card."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if framework == "torch":
        import torch

        return torch.cuda.max_memory_allocated()
    if framework == "jax":
        import jax

        return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    import tensorflow as tf

    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def release(framework: str, device: str) -> None:
    """Give back the card's memory that the framework keeps for later, if it can: others have their turn."""
    if device == "gpu" and framework == "torch":
        import torch

        torch.cuda.empty_cache()


def with_code(is_ours: bool) -> dict[str, str]:
    """Return this process' variables; ours then finds this checkout, whatever is installed, and a peer its own."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
    return {**others, "PYTHONPATH": os.pathsep.join(filter(None, paths))} if is_ours else others


def environment(device: str) -> dict[str, str]:
    """Return variables that make all frameworks take that device, and no more of a card's memory than they use."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}

"""Where there is no card Triton interprets its kernels; it asks as it is imported, which Keras does on PyTorch."""

import importlib.util
import os

if os.environ.get("KERAS_BACKEND") == "torch" and importlib.util.find_spec("torch"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"

"""One transformers model written in every layout that `from_preset` takes; tests and benchmarks share the writers."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_plain(model: Any, directory: Path) -> None:
    model.save_pretrained(directory)


def write_sharded(model: Any, directory: Path) -> None:
    size = sum(parameter.numel() * 4 for parameter in model.parameters())
    model.save_pretrained(directory, max_shard_size=size // 3)
    assert not (directory / "model.safetensors").exists()


def write_without_architectures(model: Any, directory: Path) -> None:
    model.save_pretrained(directory)
    _edit_config(directory, architectures=None)


def write_bfloat16(model: Any, directory: Path) -> None:
    copy.deepcopy(model).bfloat16().save_pretrained(directory)


def write_float16(model: Any, directory: Path) -> None:
    copy.deepcopy(model).half().save_pretrained(directory)


def write_other_prefix(model: Any, directory: Path) -> None:
    """Write a headless model with the prefix that models with a head have."""
    assert not any(name.startswith("bert.") for name in model.state_dict())
    _write_safetensors(model, directory, {f"bert.{name}": value for name, value in model.state_dict().items()})


def write_gamma_beta(model: Any, directory: Path) -> None:
    """Name LayerNorm's weights as the first PyTorch ports did."""
    _write_safetensors(model, directory, {_old(name): value for name, value in model.state_dict().items()})


def write_pytorch(model: Any, directory: Path) -> None:
    _write_pytorch(model, directory, model.state_dict(), zipped=True)


def write_pytorch_legacy(model: Any, directory: Path) -> None:
    """Write what PyTorch wrote before 1.6, with the names of that time."""
    _write_pytorch(model, directory, {_old(n): v for n, v in model.state_dict().items()}, zipped=False)


def write_pytorch_bfloat16(model: Any, directory: Path) -> None:
    _write_pytorch(model, directory, {n: v.bfloat16() for n, v in model.state_dict().items()}, zipped=True)


def write_pytorch_sharded(model: Any, directory: Path) -> None:
    import torch

    model.config.save_pretrained(directory)
    names = list(model.state_dict())
    shards = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, held in shards.items():
        torch.save({name: model.state_dict()[name] for name in held}, directory / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def write_tensorflow1(model: Any, directory: Path) -> None:
    """Write as google-research/bert does, with optimiser slots among the weights."""
    import numpy as np
    import tensorflow as tf

    directory.mkdir(parents=True, exist_ok=True)
    config = model.config.to_dict()
    fields = (
        "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
        "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
        "vocab_size",
    )  # fmt: skip
    (directory / "bert_config.json").write_text(json.dumps({field: config[field] for field in fields}))
    tensors = {"global_step": np.int64(7)}
    for name, value in model.state_dict().items():
        if name.startswith("cls.predictions.decoder."):  # Tied, and written once.
            continue
        theirs, array = _tensorflow_name(name.removeprefix("bert.")), value.float().numpy()
        array = array.T if theirs.endswith("kernel") else array
        if theirs.startswith("bert/"):
            tensors |= {f"{theirs}/adam_m": array * 0, f"{theirs}/adam_v": array * 0}
        tensors[theirs] = array
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(directory / "bert_model.ckpt"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names],
    )


LAYOUTS: dict[str, Callable[[Any, Path], None]] = {
    "safetensors": write_plain,
    "safetensors, sharded": write_sharded,
    "safetensors, no `architectures`": write_without_architectures,
    "safetensors, bfloat16": write_bfloat16,
    "safetensors, float16": write_float16,
    "safetensors, `gamma` and `beta`": write_gamma_beta,
    "pytorch_model.bin": write_pytorch,
    "pytorch_model.bin before 1.6": write_pytorch_legacy,
    "pytorch_model.bin, sharded": write_pytorch_sharded,
    "pytorch_model.bin, bfloat16": write_pytorch_bfloat16,
    "TF1 checkpoint": write_tensorflow1,
}


def reference(model: Any, layout: str, directory: Path) -> Any:
    """Return the model that a layout must equal: the one it was written from, rounded as the file rounds."""
    import torch

    if "float16" not in layout:
        return model
    return type(model).from_pretrained(directory, dtype=torch.float32).eval()


def _old(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def _tensorflow_name(name: str) -> str:
    """Rename as transformers' own script for the way back does, convert_bert_pytorch_checkpoint_to_original_tf.py."""
    if name.startswith("classifier."):  # The name that run_classifier.py gives its head.
        return {"classifier.weight": "output_weights", "classifier.bias": "output_bias"}[name]
    own_names = {  # The names in run_squad.py and run_pretraining.py.
        "qa_outputs.weight": "cls/squad/output_weights",
        "qa_outputs.bias": "cls/squad/output_bias",
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
        "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    }
    if name in own_names:
        return own_names[name]
    for old, new in (
        ("layer.", "layer_"),
        ("word_embeddings.weight", "word_embeddings"),
        ("position_embeddings.weight", "position_embeddings"),
        ("token_type_embeddings.weight", "token_type_embeddings"),
        (".", "/"),
        ("LayerNorm/weight", "LayerNorm/gamma"),
        ("LayerNorm/bias", "LayerNorm/beta"),
        ("weight", "kernel"),
    ):
        name = name.replace(old, new)
    return name if name.startswith("cls/") else f"bert/{name}"


def _edit_config(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def _write_safetensors(model: Any, directory: Path, tensors: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    model.config.save_pretrained(directory)
    _edit_config(directory, architectures=[type(model).__name__])
    save_file(tensors, directory / "model.safetensors")


def _write_pytorch(model: Any, directory: Path, tensors: dict[str, Any], zipped: bool) -> None:
    import torch

    model.config.save_pretrained(directory)
    _edit_config(directory, architectures=[type(model).__name__])
    torch.save(tensors, directory / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)

"""Files that sentence-transformers adds to a Hugging Face directory: `modules.json` and a configuration per module.

Its versions use different names for the same modules and fields. Both forms are read. The older one, which all versions
can open, is written.
"""

import dataclasses
import logging
import re
import reprlib
from pathlib import Path
from typing import Any

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint, Module
from keras_bert_zoo.checks import listed
from keras_bert_zoo.json_files import check_allowed, read_json_if_there, read_json_list, typed, write_json

MODULES, PROMPTS, TRANSFORMER = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"
SETTINGS = (MODULES, PROMPTS, TRANSFORMER, "[0-9]_*/config.json")
OPTIONAL = (MODULES, PROMPTS, TRANSFORMER, POOLING, NORMALIZE)

_CLASS = re.compile(r"sentence_transformers\.(?:\w+\.)+(\w+)")
_PLAIN_NAME = re.compile(r"\w[\w-]{0,200}")
# Each pooling mode with its name in the older form.
_POOLING = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_NORMALIZE = dict.fromkeys(("module_input_name", "module_output_name"), ("sentence_embedding", None))
_SUPPORTED = ("mean", "cls", "max")
# Each module is a file to read; the longest known lists have four.
_MOST_MODULES = 16

_logger = logging.getLogger("keras_bert_zoo")


def read_modules(directory: Path) -> tuple[Module, ...]:
    """Return the modules that `modules.json` lists, in order, with their configurations; none if there is no file.

    They are not validated here, as only an embedder uses them.
    """
    path = directory / MODULES
    if not path.is_file():
        return ()
    entries = read_json_list(path, "a JSON list of modules")
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path} must hold a JSON list of modules. Received: {reprlib.repr(entries)}")
    if len(entries) > _MOST_MODULES:
        raise ValueError(f"{path} must list at most {_MOST_MODULES} modules. Received: {len(entries)}")
    modules = []
    for number, entry in enumerate(entries):
        kind, place = typed(path, entry, "type", str, ""), typed(path, entry, "path", str, "")
        # A list of modules may only refer to folders beside it.
        if place and not _PLAIN_NAME.fullmatch(place):
            raise ValueError(f"{path}: `path` must be a plain folder name. Received: {place[:80]!r}")
        settings = directory / place / ("config.json" if number else TRANSFORMER)
        modules.append(Module(kind, place, read_json_if_there(settings)))
    if modules:  # Even without the file: the module's own configuration may use these names for other things.
        modules[0].config.update(_read_prompts(directory / PROMPTS))
    return tuple(modules)


def _read_prompts(path: Path) -> dict[str, Any]:
    config = read_json_if_there(path)
    name, prompts = typed(path, config, "default_prompt_name", str, None), typed(path, config, "prompts", dict, {})
    default = "" if name is None else str(prompts.get(name, ""))
    return {"default_prompt": default, "prompts": [name for name, prompt in prompts.items() if prompt]}


def as_embedder(checkpoint: Checkpoint) -> Checkpoint:
    """Apply a sentence-transformers checkpoint's modules; one that is not supported raises a `ValueError`."""
    kinds = [_class_name(module.kind) for module in checkpoint.modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        known = ["Transformer", "Pooling", "Normalize"]
        wrong = next((module.kind for module, kind in zip(checkpoint.modules, kinds, strict=True)
                      if kind not in known), ", ".join(kinds))  # fmt: skip
        raise ValueError(
            f"{MODULES} must list a Transformer, a Pooling and perhaps a Normalize. Received: {wrong[:80]!r}"
        )
    transformer, pooling = checkpoint.modules[:2]
    if transformer.path:
        raise ValueError(f"{MODULES}: the Transformer's `path` must be ''. Received: {transformer.path!r}")
    _check_normalize(checkpoint.modules[2:])
    config = transformer.config
    place = Path(TRANSFORMER)
    _check_transformer(place, config)
    tokenizer = dict(checkpoint.tokenizer)
    if typed(place, config, "do_lower_case", bool, False) and not tokenizer["lowercase"]:
        # Theirs lower-cases before the tokenizer, which strips accents only if it would have done so anyway.
        tokenizer |= {"lowercase": True, "strip_accents": bool(tokenizer["strip_accents"])}
    return dataclasses.replace(
        checkpoint,
        class_name="BertTextEmbedder",
        head={"pooling": _read_pooling(pooling.config), "normalize": len(checkpoint.modules) == 3},
        tokenizer=tokenizer,
        sequence_length=typed(place, config, "max_seq_length", int, checkpoint.sequence_length),
    )


def _class_name(kind: str) -> str:
    """Return the class name of one of their modules, or an empty string for other modules."""
    match = _CLASS.fullmatch(kind)
    return match[1] if match else ""


def _check_transformer(place: Path, config: dict[str, Any]) -> None:
    if config.get("default_prompt"):
        received = reprlib.repr(config["default_prompt"])
        raise ValueError(f"{PROMPTS}: `default_prompt_name` must name no prompt. Received: {received}")
    if config.get("prompts"):
        _logger.warning(
            "%s: prompts are not kept; write them before the texts yourself: %s", PROMPTS, listed(config["prompts"])
        )
    task = config.get("transformer_task", "feature-extraction")
    modality = typed(place, config, "modality_config", dict, {}).get("text", {})
    outputs = modality.get("method_output_name", "last_hidden_state") if isinstance(modality, dict) else modality
    check_allowed(place, {"transformer_task": task}, {"transformer_task": ("feature-extraction",)})
    check_allowed(place, {"method_output_name": outputs}, {"method_output_name": ("last_hidden_state",)})


def _check_normalize(modules: tuple[Module, ...]) -> None:
    for module in modules:
        check_allowed(NORMALIZE, module.config, _NORMALIZE)


def _read_pooling(config: dict[str, Any]) -> str:
    if not config:  # They write at least the width; without a config the mode would be a guess.
        raise ValueError(f"{MODULES}: the Pooling must have its config.json. Received: none, or an empty one")
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for mode, name in _POOLING.items() if config.get(name)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in _SUPPORTED:
        raise ValueError(f"{POOLING}: the pooling must be one of {_SUPPORTED}. Received: {reprlib.repr(modes)}")
    return str(modes[0])


def write_modules(directory: Path, checkpoint: Checkpoint) -> None:
    """Write the files that make a Hugging Face directory one of sentence-transformers'."""
    head, width = checkpoint.head, checkpoint.backbone["hidden_dim"]
    folders = {"Transformer": "", "Pooling": POOLING} | ({"Normalize": NORMALIZE} if head["normalize"] else {})
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(folders.items())
    ]
    for path in filter(None, folders.values()):
        (directory / path).mkdir()
    write_json(directory / MODULES, modules)
    write_json(directory / TRANSFORMER, {"max_seq_length": checkpoint.sequence_length, "do_lower_case": False})
    modes = {name: mode == head["pooling"] for mode, name in _POOLING.items()}
    write_json(directory / POOLING / "config.json", {"word_embedding_dimension": width, **modes})

"""Write a directory's model card, which holds only what its files say about the model."""

import hashlib
import json
import math
import re
from pathlib import Path

from keras_bert_zoo.checkpoints.checkpoint import Checkpoint
from keras_bert_zoo.checkpoints.shapes import backbone_shapes
from keras_bert_zoo.files import SETTINGS_BYTES

CARD = "README.md"

# The task of each class, and the hub's name for it, if it has one (huggingface.co/docs/hub/models-tasks).
_TASKS = {
    "BertBackbone": ("text encoder", "feature-extraction"),
    "BertTextEmbedder": ("text embeddings", "sentence-similarity"),
    "BertTextClassifier": ("text classification", "text-classification"),
    "BertTextRegressor": ("text regression", "text-classification"),
    "BertTokenClassifier": ("token classification", "token-classification"),
    "BertMultipleChoice": ("multiple choice", "multiple-choice"),
    "BertQuestionAnswerer": ("question answering", "question-answering"),
    "BertMaskedLM": ("masked language model", "fill-mask"),
    "BertNextSentencePredictor": ("next sentence prediction", None),
    "BertPretrainer": ("masked language model and next sentence prediction", "fill-mask"),
}
_CAUSAL = ("left-to-right language model", "text-generation")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_MOST_LABELS = 100
# The last line of an unedited card has the checksum of the lines before it.
_SEAL = re.compile(r"<!-- Written by keras-bert-zoo: ([0-9a-f]{16}) -->\n")


def check_license(license: str | None) -> None:
    """Reject a license that is not one word for the card's front matter."""
    if license is not None and not _LICENSE.fullmatch(license):
        raise ValueError(f"`license` must be one of the hub's names, such as apache-2.0. Received: license={license!r}")


def is_written_by_hand(path: Path) -> bool:
    """Whether there is a card that we did not generate, or that has been edited since."""
    if not path.exists():
        return False
    if not path.is_file() or path.stat().st_size > SETTINGS_BYTES:
        return True
    text = path.read_bytes()
    lines = text.rfind(b"<!--")
    seal = _SEAL.fullmatch(text[max(lines, 0) :].decode("utf-8", "replace"))
    return seal is None or seal[1] != _digest(text[:lines])


def write_card(path: Path, checkpoint: Checkpoint, architecture: str, license: str | None) -> None:
    """Write a card; `architecture` is transformers' class."""
    text = _card(checkpoint, architecture, license).encode()
    path.write_bytes(text + f"<!-- Written by keras-bert-zoo: {_digest(text)} -->\n".encode())


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _card(checkpoint: Checkpoint, architecture: str, license: str | None) -> str:
    task, pipeline = _TASKS[checkpoint.class_name]
    if checkpoint.backbone["causal"] and checkpoint.class_name == "BertMaskedLM":
        task, pipeline = _CAUSAL
    library = "sentence-transformers" if checkpoint.class_name == "BertTextEmbedder" else "transformers"
    front = [
        f"license: {json.dumps(license or 'unknown')}",  # Quoted, as YAML reads a bare `no` as false.
        f"library_name: {library}",
        *([f"pipeline_tag: {pipeline}"] if pipeline else []),
        "tags:",
        *(f"- {tag}" for tag in ("bert", "keras", *(["sentence-transformers"] if "sentence" in library else []))),
    ]
    parts = [
        "\n".join(["---", *front, "---"]),
        f"# BERT: {task}",
        "Nobody has written here what it was trained on, how well it does, or what it is not fit for.",
        _architecture(checkpoint),
        *_labels(checkpoint),
        f"## With keras-bert-zoo\n\n```python\n{_our_code(checkpoint)}\n```",
        f"## With {library}\n\n```python\n{_their_code(checkpoint, architecture)}\n```",
    ]
    return "\n\n".join(parts) + "\n\n"


def _architecture(checkpoint: Checkpoint) -> str:
    backbone = checkpoint.backbone
    parameters = sum(map(math.prod, backbone_shapes(backbone).values()))
    rows = {
        "layers": backbone["num_layers"],
        "width": backbone["hidden_dim"],
        "attention heads": backbone["num_heads"],
        "width of the feed-forward nets": backbone["intermediate_dim"],
        "activation": backbone["activation"],
        "longest input": f"{checkpoint.sequence_length or backbone['max_sequence_length']} tokens",
        "vocabulary": f"{backbone['vocabulary_size']:,} tokens",
        "parameters of the encoder": f"{parameters:,}",
    }
    if checkpoint.vocabulary is not None:
        rows["case"] = "uncased" if checkpoint.tokenizer["lowercase"] else "cased"
    if checkpoint.class_name == "BertTextEmbedder":
        rows["pooling"] = checkpoint.head["pooling"] + (", length 1" if checkpoint.head["normalize"] else "")
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _labels(checkpoint: Checkpoint) -> list[str]:
    names = checkpoint.head.get("class_names")
    if not names:
        return []
    # JSON in an indented block: no name can be taken for Markdown.
    shown = [f"    {i}: {json.dumps(name)}" for i, name in enumerate(names[:_MOST_LABELS])]
    more = [f"    and {len(names) - _MOST_LABELS} more"] if len(names) > _MOST_LABELS else []
    kind = ", any number of them at once" if checkpoint.head.get("multi_label") else ""
    return [f"## Labels{kind}\n\n" + "\n".join(shown + more)]


def _our_code(checkpoint: Checkpoint) -> str:
    return f'import keras_bert_zoo as kbz\n\nmodel = kbz.{checkpoint.class_name}.from_preset("path/to/it")'


def _their_code(checkpoint: Checkpoint, architecture: str) -> str:
    if checkpoint.class_name == "BertTextEmbedder":
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("path/to/it")\nvectors = model.encode(["a text"])'
        )
    if checkpoint.vocabulary is None:
        return f'from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained("path/to/it")'
    return (
        f"from transformers import BertTokenizer, {architecture}\n\n"
        f'tokenizer = BertTokenizer.from_pretrained("path/to/it")\n'
        f'model = {architecture}.from_pretrained("path/to/it")'
    )

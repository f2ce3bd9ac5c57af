"""Features of chosen layers for each token or word (Devlin et al. 2019, section 5.3), computed on demand.

For tokens, google-research/bert's extract_features.py gives the same, but numbers its layers from the first block, not
from the embeddings: add 1 to its numbers from 0 on; negative ones are the same.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.checks import check_positive_int, python_number
from keras_bert_zoo.files import replacing
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.models.trainer.workers import TrainsOnWorkers
from keras_bert_zoo.text.batching import LengthSortedBatches
from keras_bert_zoo.text.packing import PackedTexts, pack_texts
from keras_bert_zoo.text.texts import is_list, is_series, split_texts
from keras_bert_zoo.text.tokenizer import BertTokenizer
from keras_bert_zoo.training.memory import memory_kept

# Number of batches sorted by length together; the features of at most so many batches are in memory at once.
_BATCHES_IN_MEMORY = 8


class Features(NamedTuple):
    """The features of one text.

    Attributes:
        tokens: The tokens, including special tokens, or the words.
        layers: The layers, as requested.
        values: float32 `[layers, tokens, hidden_dim]`.
    """

    tokens: list[str]
    layers: tuple[int, ...]
    values: np.ndarray


def last_layers(num_layers: int) -> range:
    """Return the numbers of the last four blocks, or of all if there are fewer (Devlin et al. 2019, section 5.3)."""
    return range(-min(4, num_layers), 0)


def checked_layers(backbone: Any, **layers: Any) -> tuple[int, ...]:
    """Return the numbers of layers that one keyword holds; 0 is the embeddings, -1 the last block."""
    ((name, numbers),) = layers.items()
    count = backbone.architecture["num_layers"] + 1
    chosen = tuple(map(python_number, numbers)) if is_list(numbers) else ()
    # `True` is also an `int`.
    if not chosen or not all(type(number) is int and -count <= number < count for number in chosen):
        raise ValueError(f"`{name}` must be integers in [-{count}, {count}). Received: {name}={numbers!r}")
    return chosen


def extract_features(
    task: Task,
    texts: Iterable[Any],
    layers: Sequence[int] | None = None,
    words: str | None = None,
    batch_size: int = 32,
) -> Iterator[Features]:
    """Yield the features of any number of texts in their order; memory use does not grow with the number.

    Args:
        task: Any task with a preprocessor; its head is not used. Texts are cut to the preprocessor's length.
        texts: Strings, or pairs `(first, second)`. With `words`, strings with words separated by white space, or lists
            of words.
        layers: 0 is the embeddings, 1 the first block's output, -1 the last block's. None takes the last four,
            starting with the last, or all blocks if there are fewer.
        words: `"first"` gives the features of each word's first token, `"mean"` the mean of all its tokens; None gives
            those of each token.
        batch_size: Texts per batch.

    Raises:
        ValueError: An argument is not as described; texts are checked only as they are read.

    Example:

    ```python
    embedder = BertTextEmbedder.from_preset("bert_base_cased")
    for tokens, layers, values in extract_features(embedder, [["EU", "rejects", "call"]], words="first"):
        values.shape                                                    # (4, 3, 768)
    write_features("features.jsonl", extract_features(embedder, read_lines("input.txt")))
    ```
    """
    if getattr(task, "preprocessor", None) is None:
        raise ValueError(f"`task` must be one with a preprocessor. Received: task of type {type(task).__name__}")
    if isinstance(texts, (str, bytes, tuple, dict)) or (hasattr(texts, "to_numpy") and not is_series(texts)):
        raise ValueError(f"`texts` must be a list or iterator of texts. Received: texts of type {type(texts).__name__}")
    if layers is None:
        layers = last_layers(task.backbone.architecture["num_layers"])[::-1]
    chosen = checked_layers(task.backbone, layers=layers)
    if words not in (None, "first", "mean"):
        raise ValueError(f'`words` must be "first", "mean" or None. Received: words={words!r}')
    check_positive_int(batch_size=batch_size)
    return _extract(task, iter(texts), chosen, words, batch_size)


def _extract(
    task: Task, texts: Iterator[Any], layers: tuple[int, ...], words: str | None, batch_size: int
) -> Iterator[Features]:
    model = _ChosenLayers(task.backbone.extractor(), layers)
    tokenizer, longest = task.preprocessor.tokenizer, task.preprocessor.sequence_length
    while chunk := list(islice(texts, batch_size * _BATCHES_IN_MEMORY)):
        if words is None:
            packed, spans = _pack_tokens(task, chunk, longest), None
        else:
            chunk = [_words(text) for text in chunk]
            packed, spans = _pack_words(tokenizer, chunk, longest)
        lengths = task.static_lengths
        batches = LengthSortedBatches(packed, batch_size=batch_size, static_lengths=lengths, few_sizes=bool(lengths))
        with task.states_back(), memory_kept():
            rows = [row for (inputs,) in batches for row in model.predict_on_batch(inputs)]
        order = batches.restore_order(np.arange(len(rows)))
        ids = np.split(packed.token_ids, np.cumsum(packed.lengths)[:-1])
        for i, text in enumerate(chunk):
            values = rows[order[i]][:, : packed.lengths[i]]
            if spans is None:
                yield Features([tokenizer.id_to_token(int(token)) for token in ids[i]], layers, values.copy())
            else:
                starts = spans[i]
                yield Features(text[: len(starts)], layers, _align(values, starts, words))


def write_features(path: str | os.PathLike[str], features: Iterable[Features]) -> None:
    """Write features as JSON lines in google-research/bert's layout; on failure nothing is written.

    The layers' numbers are those of `extract_features`: those from 0 on are greater by 1 than the original's.

    Args:
        path: The file to write.
        features: What `extract_features` returns, or some of it.

    Raises:
        ValueError: A feature is NaN or infinite, for which JSON has no number.
    """
    with replacing(Path(path)) as beside, beside.open("w", encoding="utf-8") as file:
        for number, (tokens, layers, values) in enumerate(features):
            if not np.isfinite(values).all():
                raise ValueError(f"`features` must be finite. Received: text {number} with NaN or infinity")
            rounded = np.round(values.astype("float64"), 6).tolist()
            rows = [
                {
                    "token": token,
                    "layers": [{"index": layer, "values": rounded[j][i]} for j, layer in enumerate(layers)],
                }
                for i, token in enumerate(tokens)
            ]
            # The original spells it "linex", and its readers look for that.
            file.write(json.dumps({"linex_index": number, "features": rows}) + "\n")


class _ChosenLayers(TrainsOnWorkers, keras.Model):
    """Stack the requested layers, so that the others never leave the device."""

    def __init__(self, extractor: keras.Model, layers: tuple[int, ...]) -> None:
        super().__init__(name="chosen_layers")
        self.extractor = extractor
        self.chosen = layers

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def call(self, inputs: Any) -> Any:
        states = self.extractor(inputs, training=False)["hidden_states"]
        return ops.cast(ops.stack([states[layer] for layer in self.chosen], axis=1), "float32")


def _pack_tokens(task: Task, chunk: list[Any], longest: int) -> PackedTexts:
    tokenizer = task.preprocessor.tokenizer
    pairs = [isinstance(text, tuple) and len(text) == 2 for text in chunk]
    if not any(pairs):
        return pack_texts(tokenizer, split_texts(chunk, "texts")[0], None, longest)
    if not all(pairs):
        raise ValueError("`texts` must be all strings or all pairs. Received: both")
    task.check_pairs(True)
    first, second = split_texts(tuple(map(list, zip(*chunk, strict=True))), "texts")
    return pack_texts(tokenizer, first, second, longest)


def _words(text: Any) -> list[str]:
    if isinstance(text, str):
        return text.split()
    if not isinstance(text, (list, np.ndarray)):
        raise ValueError(f"`texts` must hold strings or lists of words. Received: one of type {type(text).__name__}")
    return split_texts(list(text), "texts")[0] if len(text) else []


def _pack_words(tokenizer: BertTokenizer, rows: list[list[str]], longest: int) -> tuple[PackedTexts, list[np.ndarray]]:
    """Tokenise each word on its own; return the texts and, for each, the starts of the words that fit."""
    ids, lengths = tokenizer.encode_words([word for row in rows for word in row])  # Each word has at least one token.
    ends = np.cumsum([len(row) for row in rows])
    tokens, spans = [], []
    for taken, text in zip(np.split(lengths, ends[:-1]), np.split(ids, _token_ends(lengths, ends)[:-1]), strict=True):
        kept = text[: longest - 2]
        starts = np.cumsum(taken) - taken
        spans.append(starts[starts < len(kept)])
        tokens.append(np.concatenate([[tokenizer.cls_token_id], kept, [tokenizer.sep_token_id]]))
    sizes = np.array([len(row) for row in tokens])
    return PackedTexts(np.concatenate(tokens).astype("int32"), sizes, sizes, tokenizer.pad_token_id), spans


def _token_ends(lengths: np.ndarray, word_ends: np.ndarray) -> np.ndarray:
    """Convert the ends of texts, counted in words, to ends counted in tokens."""
    return np.concatenate([[0], np.cumsum(lengths)])[word_ends]


def _align(values: np.ndarray, starts: np.ndarray, words: str | None) -> np.ndarray:
    """Convert `[layers, tokens, hidden_dim]` to `[layers, words, hidden_dim]`."""
    values = values[:, 1:-1]  # Without [CLS] and [SEP].
    if words == "first" or not len(starts):
        return values[:, starts]
    return np.add.reduceat(values, starts, axis=1) / np.diff([*starts, values.shape[1]])[:, None].astype("float32")

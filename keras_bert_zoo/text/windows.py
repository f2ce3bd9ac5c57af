"""`[CLS] words [SEP]` in as many windows as needed, with one position for the label of each word."""

from dataclasses import dataclass
from itertools import chain

import numpy as np

from keras_bert_zoo.text.packing import Arrays
from keras_bert_zoo.text.tokenizer import BertTokenizer
from keras_bert_zoo.text.words import Words

# The label of unlabelled tokens in transformers and PyTorch's cross-entropy.
IGNORED = -100


@dataclass(frozen=True)
class WordWindows:
    """Examples in windows of tokens. An example that fits is one window; the windows of longer ones overlap by half.

    Attributes:
        words: The words.
        token_ids: int32 `[tokens of all words]`.
        starts: int64 `[windows]`, the first token of each.
        lengths: int64 `[windows]`, tokens of each, including special tokens.
        examples: int64 `[windows]`, the example of each.
        word_windows: int64 `[words of all examples]`, the window in which the word has the most context.
        word_positions: int64 `[words of all examples]`, the position of its first token in that window.
        special_ids: The ids of `[CLS]`, `[SEP]` and `[PAD]`.
    """

    words: Words
    token_ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    examples: np.ndarray
    word_windows: np.ndarray
    word_positions: np.ndarray
    special_ids: tuple[int, int, int]

    def take(self, indices: np.ndarray, length: int) -> Arrays:
        """Return `token_ids`, `segment_ids` and `padding_mask`, int32 `[len(indices), length]`."""
        steps, lengths = np.arange(length), self.lengths[indices, None]
        source = np.clip(self.starts[indices, None] + steps - 1, 0, len(self.token_ids) - 1)
        begin, end, pad = self.special_ids
        ids = np.select([steps == 0, steps < lengths - 1, steps < lengths], [begin, self.token_ids[source], end], pad)
        mask = (steps < lengths).astype("int32")
        return {"token_ids": ids.astype("int32"), "segment_ids": np.zeros_like(mask), "padding_mask": mask}

    def lay(self, labels: np.ndarray) -> np.ndarray:
        """Place one label per word in `[windows, longest]`: at its first token, with `IGNORED` elsewhere.

        The array has the smallest integer type that holds them, as most places are `IGNORED`.
        """
        kind = np.min_scalar_type(min(IGNORED, -1 - int(np.max(labels, initial=0))))
        rows = np.full((len(self.lengths), self.lengths.max(initial=0)), IGNORED, kind)
        rows[self.word_windows, self.word_positions] = labels
        return rows


def pack_words(tokenizer: BertTokenizer, words: Words, sequence_length: int) -> WordWindows:
    """Tokenise each word on its own and form windows of at most `sequence_length` tokens.

    A word without tokens becomes `[UNK]`, as every word has a label. A word that does not fit into a window is
    truncated, as only its first token is labelled.
    """
    budget = sequence_length - 2
    token_ids, counts = tokenizer.encode_words(chain.from_iterable(words.examples))
    token_ids = token_ids[np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) < budget]
    bounds = np.concatenate([[0], np.cumsum(np.minimum(counts, budget))])
    sizes = np.fromiter(map(len, words.examples), "int64", len(words.examples))
    ends = np.cumsum(sizes)
    begins = ends - sizes
    long = np.flatnonzero(bounds[ends] - bounds[begins] > budget)
    cut = {i: _windows(bounds[begins[i] : ends[i] + 1], budget) for i in long}
    numbers = np.minimum(sizes, 1)  # Of windows.
    numbers[long] = [len(windows) for windows in cut.values()]
    examples = np.repeat(np.arange(len(sizes)), numbers)
    firsts, lasts = begins[examples], ends[examples]
    first_windows = np.cumsum(numbers) - numbers
    word_windows = np.repeat(first_windows, sizes)
    for i, windows in cut.items():
        own = slice(first_windows[i], first_windows[i] + len(windows))
        firsts[own], lasts[own] = begins[i] + np.array(windows).T
        word_windows[begins[i] : ends[i]] += _most_context(bounds[begins[i] : ends[i] + 1], windows)
    starts = bounds[firsts]
    return WordWindows(
        words,
        token_ids,
        starts,
        bounds[lasts] - starts + 2,
        examples,
        word_windows,
        bounds[:-1] - starts[word_windows] + 1 if len(counts) else word_windows,
        (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id),
    )


def _windows(bounds: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Return each window's first word, and the one after its last; `bounds` holds where words start, and the end."""
    count = len(bounds) - 1
    windows: list[tuple[int, int]] = []
    first = 0
    while True:
        last = int(np.searchsorted(bounds, bounds[first] + budget, side="right")) - 1
        if last == count:  # The last window is as full as the others.
            return [*windows, (int(np.searchsorted(bounds, bounds[-1] - budget)), count)]
        windows.append((first, last))
        first = min(last, max(first + 1, int(np.searchsorted(bounds, bounds[first] + budget // 2))))


def _most_context(bounds: np.ndarray, windows: list[tuple[int, int]]) -> np.ndarray:
    """Return, for each word, the first window where the smaller of its left and right contexts is largest."""
    best = np.full(len(bounds) - 1, -1)
    chosen = np.zeros(len(bounds) - 1, "int64")
    for number, (first, last) in enumerate(windows):
        context = np.minimum(bounds[first:last] - bounds[first], bounds[last] - bounds[first + 1 : last + 1])
        better = context > best[first:last]
        best[first:last][better] = context[better]
        chosen[first:last][better] = number
    return chosen

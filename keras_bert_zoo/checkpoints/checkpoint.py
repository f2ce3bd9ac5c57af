"""What every checkpoint format is translated into."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class LazyArrays(Mapping[str, np.ndarray]):
    """Arrays that are read when asked for, so that a checkpoint is never in memory as a whole."""

    def __init__(self, readers: dict[str, Callable[[], np.ndarray]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the array.
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


@dataclass
class Checkpoint:
    """A model as data.

    Attributes:
        class_name: The class it was saved from, such as `"BertBackbone"`.
        backbone: `BertBackbone`'s arguments.
        head: What the task's head needs: `num_classes`, `class_names`, `multi_label`, `dropout`; empty without a head.
        arrays: Weights under the paths that our models give them; kernels are `[in, out]`, query, key and value one
            array.
        unknown: Names of tensors in the file that have no place in any of our models.
        vocabulary: Tokens in the order of their ids, or None.
        tokenizer: `BertTokenizer`'s other arguments.
        sequence_length: Longest input in tokens the preprocessor makes, or None.
    """

    class_name: str
    backbone: dict[str, Any]
    head: dict[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    vocabulary: list[str] | None = None
    tokenizer: dict[str, Any] = field(default_factory=dict)
    sequence_length: int | None = None

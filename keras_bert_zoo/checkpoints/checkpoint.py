"""The form into which every checkpoint format is converted."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """An array in a file, whose shape is known before it is read.

    Attributes:
        shape: As stated in the file's header.
        read: Returns the values.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class LazyArrays(Mapping[str, np.ndarray]):
    """Arrays that are read on access, so that a checkpoint is never in memory as a whole."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[name].read()

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the array.
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every array without reading any."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def without(self, names: Collection[str]) -> "LazyArrays":
        """Return the arrays without these."""
        return LazyArrays({name: tensor for name, tensor in self._tensors.items() if name not in names})


class Module(NamedTuple):
    """One of the consecutive modules of a sentence-transformers model.

    Attributes:
        kind: The name of its class.
        path: Its folder, `""` for the directory itself.
        config: Its configuration.
    """

    kind: str
    path: str
    config: dict[str, Any]


@dataclass
class Checkpoint:
    """A model as data.

    Attributes:
        class_name: The class it was saved from, such as `"BertBackbone"`.
        backbone: `BertBackbone`'s arguments.
        head: Arguments of the class's head, as in its `head_config`; empty if there are none.
        arrays: Weights by their paths in our models. Kernels are `[in, out]`, and query, key and value are one array.
        unknown: Names of tensors in the file that have no place in any of our models.
        vocabulary: Tokens in the order of their ids, or None.
        tokenizer: `BertTokenizer`'s other arguments.
        sequence_length: Number of tokens of the preprocessor's longest output, or None. Cut to as many as the backbone
            has positions for, because other projects' files may allow more.
        modules: Modules that a sentence-transformers directory lists; empty for others.
        settings: Other settings of the task, such as a threshold, which other projects' formats cannot hold.
        head_dropout: The dropout rate of a new classification head, or None if the format has none.
    """

    class_name: str
    backbone: dict[str, Any]
    head: dict[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    vocabulary: list[str] | None = None
    tokenizer: dict[str, Any] = field(default_factory=dict)
    sequence_length: int | None = None
    modules: tuple[Module, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    head_dropout: float | None = None

    def __post_init__(self) -> None:
        if self.sequence_length is not None:
            self.sequence_length = min(self.sequence_length, self.backbone["max_sequence_length"])

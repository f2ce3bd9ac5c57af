"""What every checkpoint format is translated into."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """An array in a file: its shape is known before it is read.

    Attributes:
        shape: As the file's header states it.
        read: Gives the values.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class LazyArrays(Mapping[str, np.ndarray]):
    """Arrays that are read when asked for, so that a checkpoint is never in memory as a whole."""

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
        """The shape of every array, without reading one."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def without(self, names: Collection[str]) -> "LazyArrays":
        """The others."""
        return LazyArrays({name: tensor for name, tensor in self._tensors.items() if name not in names})


class Module(NamedTuple):
    """One of the steps that sentence-transformers puts one after another.

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
        head: What the class's head needs, as its `head_config` says; empty where it needs nothing.
        arrays: Weights under the paths that our models give them; kernels are `[in, out]`, query, key and value one
            array.
        unknown: Names of tensors in the file that have no place in any of our models.
        vocabulary: Tokens in the order of their ids, or None.
        tokenizer: `BertTokenizer`'s other arguments.
        sequence_length: Longest input in tokens the preprocessor makes, or None.
        modules: What a directory of sentence-transformers' lists; empty where it is none.
        settings: What else the task keeps, such as a threshold; other people's formats have no place for it.
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

"""The configuration of fine-tuning, and the data and model that follow from it."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import keras

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate, check_seed, listed
from keras_bert_zoo.finetuning.kinds import Data
from keras_bert_zoo.finetuning.recipes import RECIPES, Recipe
from keras_bert_zoo.models.classes import HasClasses
from keras_bert_zoo.presets.presets import names_directory
from keras_bert_zoo.training import AdamW, WarmupPolynomialDecay
from keras_bert_zoo.training.runs import check_types, spell_paths


@dataclass(frozen=True)
class Run:
    """The configuration of fine-tuning, saved as `run.json` in its directory; it determines what is computed.

    Values that are None are filled in from the recipe of the task, `finetuning.RECIPES[task]`.

    Attributes:
        task: Name of the task, such as `"mrpc"`.
        preset: Preset to start from, as in `from_preset`.
        data: Directory of the task's official files, or its parent directory.
        train: Training file, instead of the one in `data`.
        dev: Dev file, instead of the one in `data`.
        sequence_length: Longest input in tokens.
        batch_size: Number of examples per update, or of windows if inputs are split.
        learning_rate: Peak learning rate.
        epochs: Passes over the training data.
        warmup: Fraction of the updates used for warm-up.
        seed: Random seed.
        dtype: Precision policy, such as `"mixed_bfloat16"`.
        limit: Train on this many examples from the start of the file; the classes are those of all examples.
        language: Language of XNLI's files.
        text: Column of the text in your own tables, or the two columns of a pair; `["text"]` by default.
        label: Column of the label in your own tables; `"label"` by default.
        strategy: Argument of `keras_bert_zoo.distribute`, to train on many devices of this machine; each batch is split
            among them.
    """

    task: str
    preset: str
    _: KW_ONLY
    data: str | None = None
    train: str | None = None
    dev: str | None = None
    sequence_length: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    epochs: int | None = None
    warmup: float = 0.1
    seed: int = 12345
    dtype: str = "float32"
    limit: int | None = None
    language: str | None = None
    text: list[str] | None = None
    label: str | None = None
    strategy: str | None = None

    def __post_init__(self) -> None:
        spell_paths(self, "preset", "data", "train", "dev")
        if isinstance(self.text, tuple):
            object.__setattr__(self, "text", list(self.text))
        check_types(self)
        check_seed(seed=self.seed)
        if self.task not in RECIPES:
            raise ValueError(f"`task` must be one of {list(RECIPES)}. Received: task={self.task!r}")
        for name in ("sequence_length", "batch_size", "learning_rate", "epochs"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(self.recipe, name))
        check_positive_int(sequence_length=self.sequence_length, batch_size=self.batch_size, epochs=self.epochs)
        check_positive(learning_rate=self.learning_rate)
        if self.limit is not None:
            check_positive_int(limit=self.limit)
        if self.text is not None and (len(self.text) not in (1, 2) or not all(isinstance(c, str) for c in self.text)):
            raise ValueError(f"`text` must be a list of one column or two. Received: text={self.text!r}")
        check_rate(warmup=self.warmup)
        if self.strategy is not None and (self.strategy == "multi_worker" or self.strategy.startswith("tpu:")):
            raise ValueError(
                '`strategy` must be one of a single machine, such as "mirrored" or "tpu". '
                f"Received: strategy={self.strategy!r}"
            )
        for name in ("language", "text", "label"):
            if getattr(self, name) is not None and name not in self.recipe.options:
                raise ValueError(
                    f"`{name}` must be None for the task {self.task}. Received: {name}={getattr(self, name)!r}"
                )

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.task]

    def read_both(self) -> tuple[Data, Data, dict[str, Any]]:
        """Return the training and dev examples, and the arguments of `from_preset` for a head that suits both.

        The labels of the dev set must occur in the complete training file.
        """
        kind, train = self.recipe.kind, self.read("train")
        head = kind.head(train)
        known = head.get("class_names")
        if known is not None and len(known) < 2:
            raise ValueError(
                f"{self.path('train')} must have labels of at least two classes. Received: {listed(known)}"
            )
        names = None if train.class_names is not None else known
        dev = self.read("dev", **({} if names is None else {"class_names": names}))
        return train if self.limit is None else kind.first(train, self.limit), dev, head

    def read(self, part: str, **options: Any) -> Data:
        """Read all examples of `"train"` or `"dev"`; `options` of the reader override those of the run.

        Raises:
            ValueError: There is no such file, or its contents are not as expected; the message names file and line.
        """
        data = self.read_file(self.path(part), **options)
        if data.y is None:
            raise ValueError(f"{self.path(part)} must have labels. Received: none")
        return data

    def read_file(self, path: Path, **options: Any) -> Data:
        """Read the examples of a file of the task; `options` of the reader override those of the run."""
        own = {name: getattr(self, name) for name in self.recipe.options if getattr(self, name) is not None}
        data = self.recipe.read(path, **own | options)
        if not data.size:
            raise ValueError(f"{path} must hold at least one example. Received: none")
        return data

    def path(self, part: str) -> Path:
        """Return the file of `"train"` or `"dev"`."""
        named = getattr(self, part)
        if named is not None:
            return Path(named)
        names = [name.format(language=self.language or "en") for name in getattr(self.recipe, part)]
        if self.data is None:
            raise ValueError(f"`data` or `{part}` must be given. Received: neither")
        tried = [Path(self.data) / folder / name for folder in self.recipe.folders for name in names]
        found = next((path for path in tried if path.is_file()), None)
        if found is None:
            where = f" or in {self.recipe.folders[0]}" if self.recipe.folders[0] else ""
            raise ValueError(
                f"`data` must be a directory with {' or '.join(names)} in it{where}, "
                f"unless `{part}` names a file. Received: data={self.data!r}"
            )
        return found

    def build(self, head: dict[str, Any]) -> keras.Model:
        """Return the task's model with this head, compiled with the run's optimizer."""
        model = self.recipe.kind.model_class.from_preset(
            self.preset, dtype=self.dtype, sequence_length=self.sequence_length, **head
        )
        assert self.learning_rate is not None
        model.compile(AdamW(WarmupPolynomialDecay(self.learning_rate, self.warmup)))
        return model

    def load(self) -> keras.Model:
        """Load the task's model from a preset that has its head."""
        task = self.recipe.kind.model_class
        # In google-research/bert's layout the weights alone tell the class; a name's would be downloaded for nothing.
        found = task.read_preset(self.preset, load_weights=names_directory(self.preset))
        if issubclass(task, HasClasses) and not (task.is_own(found) and found.head):  # A fresh head needs its classes.
            missing = task.head_layers[:1]
        else:
            model = task.from_preset(self.preset, dtype=self.dtype)
            missing = model.load_report.fresh
        if missing:
            raise ValueError(
                f"`preset` must be a fine-tuned {task.__name__}. "
                f"Received: preset={self.preset!r}, without {listed(missing)}"
            )
        return model

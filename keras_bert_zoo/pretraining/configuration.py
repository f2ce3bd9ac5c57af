"""The configuration of a pre-training run."""

import reprlib
from dataclasses import KW_ONLY, dataclass
from math import isqrt
from typing import Any, cast

import keras

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate, check_seed, check_trainable
from keras_bert_zoo.text.masking import Masking
from keras_bert_zoo.training import AdamW, Lamb
from keras_bert_zoo.training.runs import check_types, spell_paths

OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}
_DECIDED_ELSEWHERE = {"pooler", "dtype"}
# Bounds of the default `save_every`: with fewer updates a run would spend more time writing than computing.
_FEWEST, _MOST = 50, 500
# Keras' optimizers count updates in int32.
_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Run:
    """The configuration of a run, saved as `run.json` in its directory; it determines what the run computes.

    Attributes:
        data: A data set made by `prepare`, or one pattern of TFRecord files, such as `"gs://bucket/*.tfrecord"`, as in
            `read_records`. Pairs train a `BertPretrainer`, other data a `BertMaskedLM`.
        preset: What to train: a name (`"bert_tiny"`) gives the architecture, a directory or `hf://` address also the
            weights; its vocabulary must then be that of the data set.
        architecture: Arguments of `BertBackbone` that replace those of the named preset, such as `{"num_layers": 4}`.
            With `{"causal": True}` a `BertMaskedLM` learns to predict each next token, with or without pairs (Devlin et
            al. 2019, section 5.1). `vocabulary_size` is that of the data set or larger: tensor cores prefer multiples
            of 64 two-byte values (NVIDIA, Matrix Multiplication Background User's Guide, section 2).
        masking: Fields of `Masking` that replace those of the data set, such as `{"mask": 1.0, "random": 0.0}`; only if
            the data set does not fix the masks.
        steps: Total number of updates.
        batch_size: Number of examples per update.
        gradient_accumulation_steps: Number of parts into which each update is split to save memory; divides
            `batch_size`.
        learning_rate: Peak learning rate.
        warmup: Fraction of the steps used for warm-up.
        optimizer: `"adamw"` or `"lamb"`.
        steps_per_execution: Number of batches between two returns to Python; with accumulation an update has several.
            More than 1 hides the host's work on an accelerator, but PyTorch needs 1. With TFRecords it must divide the
            batches between two states.
        jit_compile: True makes PyTorch compile what a step computes. This takes a minute or two at the start; on a GPU
            an update then takes two thirds of the time. TensorFlow compiles with XLA where Keras would not by itself.
        save_every: Updates between two states on disk, which are also the epochs of the log; divides `steps`. None
            becomes the largest divisor from 50 to 500 or, if there is none, the next above. A run of few steps, or of a
            prime number of steps, then has one state.
        seed: Random seed.
        dtype: Precision policy, such as `"mixed_bfloat16"`.
        dropout: Dropout rate of sub-layers and attention while pre-training; None takes the preset's. The preset that
            is written keeps the model's own rates for fine-tuning. Over few passes a model learns more without dropout
            (Geiping and Goldstein 2022, section 4.3).
        validation: A second data set of the same kind, evaluated after each epoch of the log in whole batches of the
            size of a training batch, which is a part of `batch_size` with accumulation; a remainder is left out. Its
            masks do not depend on the seed.
        strategy: Argument of `keras_bert_zoo.distribute`, to train on many devices; each batch is split among them.
        vocab: The `vocab.txt` for TFRecords, which do not contain one; None for data made by `prepare`.
        cased: Whether that vocabulary keeps case and accents.
    """

    data: str
    preset: str = "bert_tiny"
    _: KW_ONLY
    architecture: dict[str, Any] | None = None
    masking: dict[str, Any] | None = None
    steps: int = 10_000
    batch_size: int = 256
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-4
    warmup: float = 0.01
    optimizer: str = "adamw"
    steps_per_execution: int = 1
    jit_compile: bool = False
    save_every: int | None = None
    seed: int = 12345
    dtype: str = "float32"
    dropout: float | None = None
    validation: str | None = None
    strategy: str | None = None
    vocab: str | None = None
    cased: bool = False

    def __post_init__(self) -> None:
        spell_paths(self, "data", "preset", "validation", "vocab")
        check_types(self)
        check_seed(seed=self.seed)
        check_rate(warmup=self.warmup)
        check_positive_int(
            steps=self.steps,
            batch_size=self.batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            steps_per_execution=self.steps_per_execution,
        )
        if self.steps > _MOST_STEPS:
            raise ValueError(f"`steps` must be at most {_MOST_STEPS}. Received: steps={reprlib.repr(self.steps)}")
        if self.save_every is None:
            object.__setattr__(self, "save_every", self._divisor())
        check_positive_int(save_every=self.save_every)
        check_trainable(self.dtype)
        if self.steps_per_execution > 1 and keras.backend.backend() == "torch":
            raise ValueError(
                "`steps_per_execution` must be 1 on PyTorch, which Keras runs step by step. "
                f"Received: steps_per_execution={self.steps_per_execution}"
            )
        check_positive(learning_rate=self.learning_rate)
        if self.dropout is not None:
            check_rate(dropout=self.dropout)
        if self.masking is not None:
            Masking.check_fields(self.masking)
        self._check_records()
        if _DECIDED_ELSEWHERE & set(self.architecture or ()):
            raise ValueError(
                f"`architecture` must be a dict without {sorted(_DECIDED_ELSEWHERE)}, which follow from the data set "
                f"and the run. Received: architecture={self.architecture!r}"
            )
        if self.batch_size % self.gradient_accumulation_steps:
            raise ValueError(
                "`gradient_accumulation_steps` must divide `batch_size`. Received: "
                f"gradient_accumulation_steps={self.gradient_accumulation_steps}, batch_size={self.batch_size}"
            )
        if self.steps % self.epoch_steps:
            raise ValueError(
                "`save_every`, the updates between two states, must divide `steps`, or be left out. "
                f"Received: save_every={self.save_every}, steps={self.steps}"
            )
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"`optimizer` must be one of {sorted(OPTIMIZERS)}. Received: optimizer={self.optimizer!r}")

    @property
    def epoch_steps(self) -> int:
        """`save_every`, which `__post_init__` has filled in."""
        return cast(int, self.save_every)

    @property
    def epoch_batches(self) -> int:
        """Number of batches between two states."""
        return self.epoch_steps * self.gradient_accumulation_steps

    def _divisor(self) -> int:
        """Return the default `save_every` for these steps."""
        parts = self.gradient_accumulation_steps
        execution = 1 if self.vocab is None else self.steps_per_execution  # See `_check_records`.
        small = [count for count in range(1, isqrt(self.steps) + 1) if not self.steps % count]
        both = {*small, *(self.steps // count for count in small)}
        divisors = sorted(count for count in both if not count * parts % execution)
        usual = [count for count in divisors if _FEWEST <= count <= _MOST]
        return usual[-1] if usual else next((count for count in divisors if count > _MOST), self.steps)

    def _check_records(self) -> None:
        """Refuse what TFRecords do not allow, and what requires them."""
        if self.vocab is None:
            if self.data.endswith(".tfrecord"):
                raise ValueError(f"`vocab` must be given for TFRecords. Received: data={self.data!r}, vocab=None")
            if self.cased:
                raise ValueError(
                    "`cased` needs `vocab`: data made by `prepare` already record it. Received: cased=True"
                )
            return
        if self.masking is not None:
            raise ValueError(
                f"`masking` must be None for TFRecords, which are already masked. Received: masking={self.masking}"
            )
        if self.epoch_batches % self.steps_per_execution:  # A stream has no end to stop at.
            raise ValueError(
                "`steps_per_execution` must divide the batches between two states for TFRecords. Received: "
                f"steps_per_execution={self.steps_per_execution}, of {self.epoch_batches}"
            )

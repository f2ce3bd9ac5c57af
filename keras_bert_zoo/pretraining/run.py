"""A pre-training run that may be killed at any time and started again."""

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple, cast

import keras

from keras_bert_zoo.checks import check_positive, check_positive_int, check_rate, check_seed, check_trainable
from keras_bert_zoo.files import write_json
from keras_bert_zoo.models import BertBackbone, BertMaskedLM, BertPreprocessor, BertPretrainer
from keras_bert_zoo.models.task import check_preprocessor
from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.presets.presets import names_directory
from keras_bert_zoo.pretraining.batches import PretrainingBatches
from keras_bert_zoo.pretraining.progress import Speed, scalars
from keras_bert_zoo.pretraining.record_batches import RecordBatches
from keras_bert_zoo.text.masking import Masking
from keras_bert_zoo.text.tokenizer import BertTokenizer
from keras_bert_zoo.training import AdamW, Lamb, WarmupPolynomialDecay, distribute
from keras_bert_zoo.training.distribution import differs_among_workers, is_chief
from keras_bert_zoo.training.runs import (
    SaveState,
    State,
    StopAtNaN,
    check_directory,
    check_types,
    keep_rows,
    spell_paths,
)

CONFIG, STATE, LOG, BOARD, PRESET = "run.json", "state.safetensors", "log.csv", "tensorboard", "preset"
OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}
_DECIDED_ELSEWHERE = {"pooler", "dtype"}
# Updates between two states where nobody says how many: with fewer a run would write more than it computes.
_FEWEST, _MOST = 50, 500
_HELD_OUT_SEED = 0  # Of masks and order, so that runs of other seeds are scored on the same ones.


@dataclass(frozen=True)
class Run:
    """Everything that decides what a run computes; `run.json` in its directory.

    Attributes:
        data: A data set that `prepare` made, or one pattern of TFRecord files, such as `"gs://bucket/*.tfrecord"`, as
            `read_records` takes them. With pairs a `BertPretrainer` is trained, without a `BertMaskedLM`.
        preset: What to train: a name (`"bert_tiny"`), whose architecture is taken, or a directory or `hf://` address,
            whose weights are; its vocabulary must be that of the data set.
        architecture: Arguments of `BertBackbone` in place of the named preset's, such as `{"num_layers": 4}`. With
            `{"causal": True}` a `BertMaskedLM` learns to predict each next token, pairs or not (Devlin et al. 2019,
            section 5.1). `vocabulary_size` is that of the data set, or more: tensor cores want multiples of 64 values
            of two bytes (NVIDIA, Matrix Multiplication Background User's Guide, section 2).
        masking: Fields of `Masking` in place of the data set's, such as `{"mask": 1.0, "random": 0.0}`; only where it
            does not fix them.
        steps: Updates in all.
        batch_size: Examples an update.
        gradient_accumulation_steps: Parts in which an update's examples are worked on, for want of memory; divides
            `batch_size`.
        learning_rate: The peak.
        warmup: Share of the steps spent warming up.
        optimizer: `"adamw"` or `"lamb"`.
        steps_per_execution: Batches, of which accumulation takes several for an update, between two returns to Python,
            which on an accelerator hides the host's work; not on PyTorch. From TFRecords it divides those of
            `save_every`.
        jit_compile: True has PyTorch compile what a step computes, for a minute or two at the start; on a GPU an update
            takes two thirds of the time then. TensorFlow compiles with XLA where Keras would not by itself.
        save_every: Updates between two states on disk, which are also the epochs of the log; divides `steps`. None
            becomes the largest divisor from 50 to 500 or, where there is none, the next above: few steps have one state
            so, and so has a prime number of them.
        seed: Where chance comes from.
        dtype: Precision policy, such as `"mixed_bfloat16"`.
        dropout: Of sub-layers and attention while pre-training; None takes the preset's own. The preset that is written
            keeps its own, for fine-tuning. Few passes over the text learn more without any (Geiping and Goldstein 2022,
            section 4.3).
        validation: A second data set of the same kind, evaluated after each epoch of the log, with the same masks
            whatever the seed; of it as many examples as make whole batches of the run's size.
        strategy: What `keras_bert_zoo.distribute` takes, to train on many devices; each batch is split among them.
        vocab: The `vocab.txt` of TFRecords, which do not hold one; None where `prepare` made the data.
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
        check_positive_int(
            steps=self.steps,
            batch_size=self.batch_size,
            gradient_accumulation_steps=self.gradient_accumulation_steps,
            steps_per_execution=self.steps_per_execution,
        )
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
        """`save_every`, which is no longer None."""
        return cast(int, self.save_every)

    @property
    def epoch_batches(self) -> int:
        """Batches between two states."""
        return self.epoch_steps * self.gradient_accumulation_steps

    def _divisor(self) -> int:
        """A `save_every` for these steps."""
        parts = self.gradient_accumulation_steps
        execution = 1 if self.vocab is None else self.steps_per_execution  # See `_check_records`.
        small = [count for count in range(1, isqrt(self.steps) + 1) if not self.steps % count]
        both = {*small, *(self.steps // count for count in small)}
        divisors = sorted(count for count in both if not count * parts % execution)
        usual = [count for count in divisors if _FEWEST <= count <= _MOST]
        return usual[-1] if usual else next((count for count in divisors if count > _MOST), self.steps)

    def _check_records(self) -> None:
        """Refuse what TFRecords do not allow, or what only they have."""
        if self.vocab is None:
            if self.data.endswith(".tfrecord"):
                raise ValueError(f"`vocab` must be given for TFRecords. Received: data={self.data!r}, vocab=None")
            if self.cased:
                raise ValueError("`cased` needs `vocab`: data that `prepare` made know it. Received: cased=True")
            return
        if self.masking is not None:
            raise ValueError(
                f"`masking` must be None for TFRecords, which are masked. Received: masking={self.masking}"
            )
        if self.epoch_batches % self.steps_per_execution:  # A stream has no end to stop at.
            raise ValueError(
                "`steps_per_execution` must divide the batches between two states for TFRecords. Received: "
                f"steps_per_execution={self.steps_per_execution}, of {self.epoch_batches}"
            )


def pretrain(run: Run, out: str | os.PathLike[str], verbose: Any = "auto") -> BertMaskedLM:
    """Pre-train, or go on where a run of the same configuration was killed, and write a preset.

    Weights, the optimizer, the place in the data and dropout's random state are saved together, so that a run that was
    killed ends with the weights of one that never was, where the backend's operations are deterministic.

    Args:
        run: The configuration.
        out: Directory of the run: `run.json`, the last state, `log.csv`, `tensorboard/` where that is installed, and in
            the end `preset/`. Of several workers the first one writes it, and all must see it.
        verbose: As in `fit`.

    Raises:
        ValueError: `out` holds another run, or the loss became NaN, with the step and the last state.
    """
    folder = Path(out)
    check_directory(folder / CONFIG, asdict(run))
    with distribute(run.strategy):
        model, own = _pretrain(run, folder, verbose)
        chief = is_chief()
    if chief and not (folder / PRESET).exists():
        _rebuild(model, run, own).save_to_preset(folder / PRESET)
    return model


def _pretrain(run: Run, folder: Path, verbose: Any) -> tuple[BertMaskedLM, dict[str, float]]:
    """The trained model, and the rates of dropout that the preset keeps."""
    keras.utils.set_random_seed(run.seed)
    backbone = load_preset(run.preset, load_weights=False).backbone | (run.architecture or {})
    parts = run.gradient_accumulation_steps
    data = (_open_arrays if run.vocab is None else _open_records)(run, backbone.get("causal", False))
    batches, validation = data.batches, data.validation
    model = _build(run, batches, backbone)
    model.check_batches(batches, "data")
    if validation is not None:
        model.check_batches(validation, "validation")
    own = {name: model.backbone.architecture[name] for name in ("dropout", "attention_dropout")}
    if run.dropout is not None:
        model = _rebuild(model, run, dict.fromkeys(own, run.dropout))
    schedule = WarmupPolynomialDecay(run.learning_rate, run.warmup, run.steps)
    accumulation = parts if parts > 1 else None
    optimizer = OPTIMIZERS[run.optimizer](schedule, gradient_accumulation_steps=accumulation)
    compiles = run.jit_compile or "auto"
    model.compile(optimizer=optimizer, steps_per_execution=run.steps_per_execution, jit_compile=compiles)
    model.optimizer.build(model.trainable_variables)
    if is_chief():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, asdict(run))  # Not before it is known to make sense.
    state = State(model, folder / STATE, batches.digest, run.epoch_steps)
    done = state.restore()
    if differs_among_workers(done):
        raise ValueError(f"`out` must be a directory that all workers see. Received: out={str(folder)!r}")
    callbacks = [StopAtNaN(state), Speed(model, batches)]
    if is_chief():
        keep_rows(folder / LOG, done)
        log = keras.callbacks.CSVLogger(str(folder / LOG), append=done > 0)
        callbacks += [log, *scalars(folder / BOARD, run.epoch_steps)]
    callbacks.append(SaveState(state, data.stream))  # Behind the log: a row too many is cut, one too few would be lost.
    epochs = run.steps // run.epoch_steps
    model.fit(**data.feed(done), epochs=epochs, initial_epoch=done, verbose=verbose, callbacks=callbacks)
    return model, own


class _Data(NamedTuple):
    """What a run learns from.

    Attributes:
        batches: What is known of the data to train on.
        validation: The same of those held out.
        feed: From the epochs that are done to the data, as arguments of `fit`.
        stream: Whether `fit` opens them once, and not once an epoch.
    """

    batches: PretrainingBatches | RecordBatches
    validation: PretrainingBatches | RecordBatches | None
    feed: Callable[[int], dict[str, Any]]
    stream: bool


def _open_arrays(run: Run, causal: bool) -> _Data:
    """What `prepare` made."""
    parts = run.gradient_accumulation_steps
    together = {"epoch_batches": run.epoch_batches, "gradient_accumulation_steps": parts}
    batches = _batches(run, run.data, causal, **together)
    validation = None if run.validation is None else _held_out(run.validation, run, batches)
    return _Data(batches, validation, lambda done: {"x": batches, "validation_data": validation}, stream=False)


def _open_records(run: Run, causal: bool) -> _Data:
    """TFRecords."""
    if causal:
        raise ValueError(f"`data` must be made by `prepare` for a causal backbone. Received: data={run.data!r}")
    tokenizer = BertTokenizer(cast(str, run.vocab), lowercase=not run.cased)
    parts = run.gradient_accumulation_steps
    size, epoch_batches = run.batch_size // parts, run.epoch_batches
    batches = RecordBatches(run.data, tokenizer, size, run.seed, parts)
    validation = None
    if run.validation is not None:
        validation = RecordBatches(run.validation, tokenizer, size, name="validation")

    def feed(done: int) -> dict[str, Any]:
        held_out = None if validation is None else validation.in_order()
        x = batches.start_at(done * epoch_batches)
        return {"x": x, "steps_per_epoch": epoch_batches, "validation_data": held_out}

    return _Data(batches, validation, feed, stream=True)


def _batches(run: Run, path: str, next_token: bool, **options: Any) -> PretrainingBatches:
    size = run.batch_size // run.gradient_accumulation_steps
    if run.masking is not None:
        data = PretrainingBatches(path, batch_size=1)
        changes = run.masking
        if "rate" in changes:  # Else the data set's most predictions would hold it down.
            most = Masking.for_length(data.sequence_length, rate=changes["rate"]).max_predictions
            changes = {"max_predictions": most, **changes}
        options["masking"] = replace(data.masking, **changes)
    return PretrainingBatches(path, size, seed=run.seed, next_token=next_token, **options)


def _held_out(path: str, run: Run, batches: PretrainingBatches) -> PretrainingBatches:
    if run.masking is not None and PretrainingBatches(path, batch_size=1).fixed_masks:
        run = replace(run, masking=None)  # Two runs of other masks are compared on the same ones.
    held_out = _batches(replace(run, seed=_HELD_OUT_SEED), path, batches.next_token)
    if held_out.tokenizer.get_config() != batches.tokenizer.get_config():
        raise ValueError(
            "`validation` must have the vocabulary and the tokenizer of the data set. "
            f"Received: validation={path!r} with other ones"
        )
    return held_out


def _build(run: Run, batches: PretrainingBatches | RecordBatches, backbone: dict[str, Any]) -> BertMaskedLM:
    task = BertPretrainer if batches.next_sentence else BertMaskedLM
    tokenizer = batches.tokenizer
    preprocessor = BertPreprocessor(tokenizer, batches.sequence_length)
    if names_directory(run.preset) or run.preset.startswith("hf://"):
        if run.architecture is not None:
            raise ValueError(
                "`architecture` must be None for a preset whose weights are taken. "
                f"Received: architecture={run.architecture}, preset={run.preset!r}"
            )
        model = task.from_preset(run.preset, dtype=run.dtype)
        theirs = None if model.preprocessor is None else model.preprocessor.tokenizer.get_config()
        if theirs != tokenizer.get_config():
            raise ValueError(
                "`preset` must have the vocabulary and the tokenizer of the data set. "
                f"Received: preset={run.preset!r} with other ones"
            )
        check_preprocessor(preprocessor, model.backbone)
        model.preprocessor = preprocessor
        return model
    changes = {"vocabulary_size": tokenizer.vocabulary_size, **(run.architecture or {})}
    fixed = {"pooler": task.needs_pooler, "dtype": run.dtype}
    return task(BertBackbone(**{**backbone, **changes, **fixed}), preprocessor)


def _rebuild(model: BertMaskedLM, run: Run, changes: dict[str, float]) -> BertMaskedLM:
    """The same weights under other rates of dropout, which are part of a layer."""
    backbone = BertBackbone(**{**model.backbone.architecture, "dtype": run.dtype, **changes})
    other = type(model)(backbone, model.preprocessor)
    other.set_weights(model.get_weights())
    return other

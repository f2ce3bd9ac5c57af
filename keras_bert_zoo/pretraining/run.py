"""A pre-training run that may be killed at any time and started again."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checkpoints.files import read_json, write_json
from keras_bert_zoo.layers.checks import check_positive, check_positive_int, check_rate
from keras_bert_zoo.models import BertBackbone, BertMaskedLM, BertPreprocessor, BertPretrainer
from keras_bert_zoo.models.task import check_preprocessor
from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.pretraining.batches import PretrainingBatches
from keras_bert_zoo.training import AdamW, Lamb, WarmupPolynomialDecay, distribute
from keras_bert_zoo.training.distribution import differs_among_workers, is_chief

CONFIG, STATE, LOG, PRESET = "run.json", "state.safetensors", "log.csv", "preset"
OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}


@dataclass(frozen=True)
class Run:
    """Everything that decides what a run computes; `run.json` in its directory.

    Attributes:
        data: A data set that `prepare` made. With pairs a `BertPretrainer` is trained, without a `BertMaskedLM`.
        preset: What to train: a name (`"bert_tiny"`), whose architecture is taken, or a directory or `hf://` address,
            whose weights are; its vocabulary must be that of the data set.
        steps: Updates in all.
        batch_size: Examples an update.
        learning_rate: The peak.
        warmup: Share of the steps spent warming up.
        optimizer: `"adamw"` or `"lamb"`.
        save_every: Updates between two states on disk, which are also the epochs of the log; divides `steps`.
        seed: Where chance comes from.
        dtype: Precision policy, such as `"mixed_bfloat16"`.
        dropout: Of sub-layers and attention while pre-training; None takes the preset's own. The preset that is written
            keeps its own, for fine-tuning. Few passes over the text learn more without any (Geiping and Goldstein 2022,
            section 4.3).
        validation: A second data set, evaluated with the same masks after each epoch of the log.
        strategy: What `keras_bert_zoo.distribute` takes, to train on many devices; each batch is split among them.
    """

    data: str
    preset: str = "bert_tiny"
    steps: int = 10_000
    batch_size: int = 256
    learning_rate: float = 1e-4
    warmup: float = 0.01
    optimizer: str = "adamw"
    save_every: int = 500
    seed: int = 12345
    dtype: str = "float32"
    dropout: float | None = None
    validation: str | None = None
    strategy: str | None = None

    def __post_init__(self) -> None:
        check_positive_int(steps=self.steps, batch_size=self.batch_size, save_every=self.save_every)
        check_positive(learning_rate=self.learning_rate)
        if self.dropout is not None:
            check_rate(dropout=self.dropout)
        if self.steps % self.save_every:
            raise ValueError(
                f"`save_every` must divide `steps`. Received: save_every={self.save_every}, steps={self.steps}"
            )
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"`optimizer` must be one of {sorted(OPTIMIZERS)}. Received: optimizer={self.optimizer!r}")


def pretrain(run: Run, out: str | os.PathLike[str], verbose: Any = "auto") -> BertMaskedLM:
    """Pre-train, or go on where a run of the same configuration was killed, and write a preset.

    Weights, the optimizer, the place in the data and dropout's random state are saved together, so that a run that was
    killed ends with the weights of one that never was, where the backend's operations are deterministic.

    Args:
        run: The configuration.
        out: Directory of the run: `run.json`, the last state, `log.csv`, and in the end `preset/`. Of several workers
            the first one writes it, and all must see it.
        verbose: As in `fit`.

    Raises:
        ValueError: `out` holds another run, or the loss became NaN, with the step and the last state.
    """
    folder = Path(out)
    _check_directory(folder, run)
    with distribute(run.strategy):
        model, own = _pretrain(run, folder, verbose)
        chief = is_chief()
    if chief and not (folder / PRESET).exists():
        _rebuild(model, run, own).save_to_preset(folder / PRESET)
    return model


def _pretrain(run: Run, folder: Path, verbose: Any) -> tuple[BertMaskedLM, dict[str, float]]:
    """The trained model, and the rates of dropout that the preset keeps."""
    keras.utils.set_random_seed(run.seed)
    batches = PretrainingBatches(run.data, run.batch_size, seed=run.seed, epoch_batches=run.save_every)
    validation = None if run.validation is None else _held_out(run.validation, run, batches)
    model = _build(run, batches)
    own = {name: model.backbone.architecture[name] for name in ("dropout", "attention_dropout")}
    if run.dropout is not None:
        model = _rebuild(model, run, dict.fromkeys(own, run.dropout))
    schedule = WarmupPolynomialDecay(run.learning_rate, run.warmup, run.steps)
    model.compile(optimizer=OPTIMIZERS[run.optimizer](schedule))
    model.optimizer.build(model.trainable_variables)
    if is_chief():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, asdict(run))  # Not before it is known to make sense.
    state = _State(model, folder / STATE)
    done = state.restore()
    if differs_among_workers(done):
        raise ValueError(f"`out` must be a directory that all workers see. Received: out={str(folder)!r}")
    callbacks = [
        _StopAtNaN(state),
        _Speed(batches),
        _SaveState(state),
    ]
    if is_chief():
        callbacks.append(keras.callbacks.CSVLogger(str(folder / LOG), append=done > 0))
    model.fit(
        batches,
        epochs=run.steps // run.save_every,
        initial_epoch=done,
        validation_data=validation,
        verbose=verbose,
        callbacks=callbacks,
    )
    return model, own


def _check_directory(folder: Path, run: Run) -> None:
    path = folder / CONFIG
    if path.is_file():
        before, now = read_json(path), asdict(run)
        different = [name for name in now if before.get(name) != now[name]]
        if different:
            described = ", ".join(f"{name}={now[name]!r}, before {before.get(name)!r}" for name in different)
            raise ValueError(f"`out` must be new, or hold a run of the same configuration. Received: {described}")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"`out` must be a new or empty directory, or that of a run. Received: out={str(folder)!r}")


def _held_out(path: str, run: Run, batches: PretrainingBatches) -> PretrainingBatches:
    held_out = PretrainingBatches(path, run.batch_size, seed=run.seed)
    if held_out.tokenizer.get_config() != batches.tokenizer.get_config():
        raise ValueError(
            "`validation` must have the vocabulary and the tokenizer of the data set. "
            f"Received: validation={path!r} with other ones"
        )
    return held_out


def _build(run: Run, batches: PretrainingBatches) -> BertMaskedLM:
    task = BertPretrainer if batches.next_sentence else BertMaskedLM
    tokenizer = batches.tokenizer
    preprocessor = BertPreprocessor(tokenizer, batches.sequence_length)
    if os.path.isdir(run.preset) or run.preset.startswith("hf://"):
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
    backbone = load_preset(run.preset, load_weights=False).backbone
    changes = {"vocabulary_size": tokenizer.vocabulary_size, "pooler": task.needs_pooler, "dtype": run.dtype}
    return task(BertBackbone(**{**backbone, **changes}), preprocessor)


def _rebuild(model: BertMaskedLM, run: Run, changes: dict[str, float]) -> BertMaskedLM:
    """The same weights under other rates of dropout, which are part of a layer."""
    backbone = BertBackbone(**{**model.backbone.architecture, "dtype": run.dtype, **changes})
    other = type(model)(backbone, model.preprocessor)
    other.set_weights(model.get_weights())
    return other


class _State:
    """All that a run needs to go on, in one file."""

    def __init__(self, model: keras.Model, path: Path) -> None:
        self.path = path
        self._model = model

    def _variables(self) -> dict[str, Any]:
        # Dropout's seed generators are among the model's.
        variables = [*self._model.variables, *self._model.optimizer.variables]
        # By number: the names of seed generators count how many a process has made.
        return {str(number): variable for number, variable in enumerate(variables)}

    def save(self, epochs: int) -> None:
        from safetensors.numpy import save_file

        arrays = {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables().items()}
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays.values()):
            raise ValueError(f"The weights must be finite. Received: others after epoch {epochs}; {self.last()}")
        if keras.backend.backend() == "torch":
            import torch

            arrays["torch"] = torch.get_rng_state().numpy()
            if torch.cuda.is_available():
                arrays["torch.cuda"] = torch.stack(torch.cuda.get_rng_state_all()).numpy()
        if not is_chief():  # The variables are the same on all workers, and to read one they may have to meet.
            return
        beside = self.path.with_suffix(".part")
        contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        save_file(contiguous, beside, metadata={"epochs": str(epochs)})
        os.replace(beside, self.path)

    def restore(self) -> int:
        """Take the state that is there, and return the number of epochs behind it."""
        if not self.path.is_file():
            return 0
        from safetensors import safe_open

        with safe_open(self.path, framework="numpy") as file:
            for name, variable in self._variables().items():
                variable.assign(file.get_tensor(name))
            return int(file.metadata()["epochs"])

    def restore_generator(self) -> None:
        """On PyTorch dropout draws from its one generator, and so does `fit` before the first step."""
        if keras.backend.backend() == "torch" and self.path.is_file():
            import torch
            from safetensors import safe_open

            with safe_open(self.path, framework="numpy") as file:
                torch.set_rng_state(torch.from_numpy(file.get_tensor("torch")))
                if torch.cuda.is_available():
                    torch.cuda.set_rng_state_all(list(torch.from_numpy(file.get_tensor("torch.cuda"))))

    def last(self) -> str:
        """Where to go back to, in words."""
        return f"the last state is {self.path}" if self.path.is_file() else "there is no state yet"


class _SaveState(keras.callbacks.Callback):
    def __init__(self, state: _State) -> None:
        super().__init__()
        self._state = state

    def on_train_begin(self, logs: Any = None) -> None:
        self._state.restore_generator()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.save(epoch + 1)


class _StopAtNaN(keras.callbacks.Callback):
    def __init__(self, state: _State) -> None:
        super().__init__()
        self._state = state
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            step = self._epoch * self.params["steps"] + batch + 1
            raise ValueError(f"The loss must be finite. Received: {loss} after step {step}; {self._state.last()}")


class _Speed(keras.callbacks.Callback):
    """Real tokens a second, padding left out, for the log."""

    def __init__(self, batches: PretrainingBatches) -> None:
        super().__init__()
        self._batches = batches
        self._start = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._start = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            tokens = len(self._batches) * self._batches.batch_size * self._batches.mean_length
            logs["tokens_per_second"] = tokens / (time.monotonic() - self._start)

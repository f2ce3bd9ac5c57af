"""A pre-training run that can be killed at any time and resumed."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import keras

from keras_bert_zoo.files import check_local
from keras_bert_zoo.json_files import write_json
from keras_bert_zoo.models import BertBackbone, BertMaskedLM, BertPreprocessor, BertPretrainer
from keras_bert_zoo.models.rebuilt import with_dropout
from keras_bert_zoo.models.task import check_preprocessor
from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.presets.presets import names_directory
from keras_bert_zoo.pretraining.batches import PretrainingBatches
from keras_bert_zoo.pretraining.configuration import OPTIMIZERS, Run
from keras_bert_zoo.pretraining.description import read_description
from keras_bert_zoo.pretraining.progress import Speed, scalars
from keras_bert_zoo.pretraining.record_batches import RecordBatches, refused_records
from keras_bert_zoo.text.masking import Masking
from keras_bert_zoo.text.tokenizer import BertTokenizer
from keras_bert_zoo.training import WarmupPolynomialDecay, distribute
from keras_bert_zoo.training.distribution import differs_among_workers, is_chief
from keras_bert_zoo.training.runs import SaveState, State, StopAtNaN, check_directory, held, keep_rows

CONFIG, STATE, LOG, BOARD, PRESET = "run.json", "state.safetensors", "log.csv", "tensorboard", "preset"
_logger = logging.getLogger("keras_bert_zoo")
_HELD_OUT_SEED = 0  # Seed of masks and order, so that runs with different seeds are scored on the same ones.


def pretrain(run: Run, out: str | os.PathLike[str], verbose: Any = "auto") -> BertMaskedLM:
    """Pre-train, or resume a killed run of the same configuration, and write a preset.

    Weights, optimizer, position in the data and dropout's random state are saved together, so that a resumed run ends
    with the same weights as an uninterrupted one if the backend's operations are deterministic.

    Args:
        run: The configuration.
        out: Directory of the run: `run.json`, the last state, `log.csv`, `tensorboard/` if tensorboard is installed,
            and at the end `preset/`. With several workers the first one writes it, and all must see it.
        verbose: As in `fit`.

    Raises:
        ValueError: `out` holds another run or one that is under way, or the loss or a weight became NaN or infinite.
            In the last case the message names the step and the last state. TFRecords have a damaged record, or values
            that no example has.
    """
    check_local(out=out)
    folder = Path(out)
    check_directory(folder / CONFIG, asdict(run))
    with ExitStack() as holding:
        with distribute(run.strategy):
            model, own = _pretrain(run, folder, verbose, holding)
            chief = is_chief()
        if chief and not (folder / PRESET).exists():
            with_dropout(model, **own).save_to_preset(folder / PRESET)
    return model


def _pretrain(run: Run, folder: Path, verbose: Any, holding: ExitStack) -> tuple[BertMaskedLM, dict[str, float]]:
    """Return the trained model, and the dropout rates that the preset keeps."""
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
        model = with_dropout(model, run.dropout, run.dropout)
    schedule = WarmupPolynomialDecay(run.learning_rate, run.warmup, run.steps)
    accumulation = parts if parts > 1 else None
    optimizer = OPTIMIZERS[run.optimizer](schedule, gradient_accumulation_steps=accumulation)
    compiles = run.jit_compile or "auto"
    model.compile(optimizer=optimizer, steps_per_execution=run.steps_per_execution, jit_compile=compiles)
    model.optimizer.build(model.trainable_variables)
    model.check_compiled()
    if is_chief():
        holding.enter_context(held(folder / CONFIG, asdict(run)))
        write_json(folder / CONFIG, asdict(run))  # Only once the configuration is known to be valid.
    digests = [part.digest for part in (batches, validation) if part is not None]
    state = State(model, folder / STATE, " ".join(digests), run.epoch_steps)
    done = state.restore()
    if differs_among_workers(done):
        raise ValueError(f"`out` must be a directory that all workers see. Received: out={str(folder)!r}")
    callbacks = [StopAtNaN(state), Speed(model, batches)]
    if is_chief():
        keep_rows(folder / LOG, done)
        log = keras.callbacks.CSVLogger(str(folder / LOG), append=done > 0)
        callbacks += [log, *scalars(folder / BOARD, run.epoch_steps)]
    callbacks.append(SaveState(state, data.stream))  # After the log: an extra row is cut, a missing one would be lost.
    epochs = run.steps // run.epoch_steps
    with refused_records(state.last) if data.stream else nullcontext():
        model.fit(**data.feed(done), epochs=epochs, initial_epoch=done, verbose=verbose, callbacks=callbacks)
    return model, own


class _Data(NamedTuple):
    """The data of a run.

    Attributes:
        batches: The data to train on.
        validation: The held-out data.
        feed: Function from the number of finished epochs to the data arguments of `fit`.
        stream: Whether `fit` opens the data once, rather than once per epoch.
    """

    batches: PretrainingBatches | RecordBatches
    validation: PretrainingBatches | RecordBatches | None
    feed: Callable[[int], dict[str, Any]]
    stream: bool


def _open_arrays(run: Run, causal: bool) -> _Data:
    """Open data sets made by `prepare`."""
    parts = run.gradient_accumulation_steps
    together = {"epoch_batches": run.epoch_batches, "gradient_accumulation_steps": parts}
    batches = _batches(run, run.data, causal, **together)
    validation = None if run.validation is None else _held_out(run.validation, run, batches)
    return _Data(batches, validation, lambda done: {"x": batches, "validation_data": validation}, stream=False)


def _open_records(run: Run, causal: bool) -> _Data:
    """Open TFRecords."""
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
        data, changes = read_description(Path(path)), run.masking
        if "rate" in changes:  # Otherwise the data set's `max_predictions` would limit a higher rate.
            most = Masking.for_length(data.sequence_length, rate=changes["rate"]).max_predictions
            changes = {"max_predictions": most, **changes}
        options["masking"] = replace(data.masking, **changes)
    return PretrainingBatches(path, size, seed=run.seed, next_token=next_token, **options)


def _held_out(path: str, run: Run, batches: PretrainingBatches) -> PretrainingBatches:
    if run.masking is not None and read_description(Path(path)).fixed_masks:
        run = replace(run, masking=None)  # So that runs with different masking are compared on the same masks.
    held_out = _batches(replace(run, seed=_HELD_OUT_SEED), path, batches.next_token)
    if held_out.tokenizer.get_config() != batches.tokenizer.get_config():
        raise ValueError(
            "`validation` must have the vocabulary and the tokenizer of the data set. "
            f"Received: validation={path!r} with a different vocabulary or tokenizer"
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
                f"Received: preset={run.preset!r} with a different vocabulary or tokenizer, or none"
            )
        check_preprocessor(preprocessor, model.backbone)
        model.preprocessor = preprocessor
        return model
    _logger.warning(
        "%s gives only the architecture: weights start at random. To start from weights, pass a directory or hf://",
        run.preset,
    )
    changes = {"vocabulary_size": tokenizer.vocabulary_size, **(run.architecture or {})}
    fixed = {"pooler": task.needs_pooler, "dtype": run.dtype}
    return task(BertBackbone(**{**backbone, **changes, **fixed}), preprocessor)

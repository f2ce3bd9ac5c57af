"""Write predictions to files, in the leaderboards' formats or as JSON lines."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_zoo.data import write_squad_predictions, write_submission
from keras_bert_zoo.data.glue import SUBMISSIONS
from keras_bert_zoo.files import check_out, replacing
from keras_bert_zoo.finetuning.kinds import Answers, Data
from keras_bert_zoo.finetuning.readers import from_lines
from keras_bert_zoo.finetuning.recipes import Recipe
from keras_bert_zoo.finetuning.run import Run
from keras_bert_zoo.text.files import read_lines

# Number of lines in memory at a time.
_BLOCK = 10_000
# Number of lines used to recognise a file.
_FIRST = 50
# Suffixes of files that never hold one text per line.
_NO_LINES = (".csv", ".json", ".jsonl")


def predict(
    run: Run, out: str | os.PathLike[str], source: str | os.PathLike[str] | None = None, verbose: Any = 0
) -> None:
    """Write the predictions of a fine-tuned preset.

    Args:
        run: The task and the preset; for your own tables also the column of the text.
        out: The `.jsonl` file to write, with one object per example: `label` and `probabilities`, `value`, `tags` or
            `entities`, `answer`, or `choice`. For a file of GLUE it may be a submission such as `MRPC.tsv` or
            `MNLI-mm.tsv`; for a file of SQuAD it is a directory for the three official files.
        source: A file of the task, recognised by its suffix (for CoNLL also by its first lines), with or without labels
            (DREAM needs them). Any other file is read as lines: one text, two texts with a tab between, or a context
            and its choices. None reads lines from standard input.
        verbose: As in `keras.Model.predict`; 1 shows a progress bar.

    Example:

    ```python
    predict(Run("rte", "rte/preset"), "submission/RTE.tsv", "RTE/test.tsv")
    predict(Run("conll", "ner/preset"), "entities.jsonl", "texts.txt")
    ```
    """
    own = source is not None and _is_own(Path(source), run.recipe)
    _check_out(run, out, source, own)
    if own:
        assert source is not None
        _predict_file(run, Path(source), Path(out), verbose)
    else:
        _predict_lines(run, source, Path(out), verbose)


def _check_out(run: Run, out: str | os.PathLike[str], source: str | os.PathLike[str] | None, own: bool) -> None:
    """Check that `out` is what the source gives, and that `source` is the task's own file or lines."""
    recipe, target = run.recipe, Path(out)
    names = _submissions(run.task)
    folder = own and isinstance(recipe.kind, Answers)
    if target.is_file() if folder else target.is_dir():
        expected, found = ("directory", "file") if folder else ("file", "directory")
        raise ValueError(f"`out` must be a {expected}. Received: out={str(out)!r}, a {found}")
    suffix = target.suffix.lower()
    if not (own and target.name in names) and (suffix in (".tsv", ".jsonl") if folder else suffix != ".jsonl"):
        kinds = "a directory for a file of SQuAD" if folder else "a .jsonl"
        kinds += f", or for a file of GLUE one of its submissions, {names} for {run.task}" if names else ""
        raise ValueError(f"`out` must be {kinds}. Received: out={str(out)!r}")
    if source is not None and target.exists() and target.samefile(source):
        raise ValueError(f"`out` must differ from `source`. Received: out={str(out)!r}")
    if source is not None and not own and Path(source).suffix.lower() in _NO_LINES:
        raise ValueError(
            f"`source` must be a file of the task {run.task}, {' or '.join(recipe.suffixes)}, or lines of text; the "
            f"task texts reads your own tables. Received: source={os.fspath(source)!r}"
        )
    check_out(out, target if folder else target.parent)


def _submissions(task: str) -> list[str]:
    return [f"{name}.tsv" for name, each in SUBMISSIONS.items() if each == task]


def _predict_file(run: Run, source: Path, target: Path, verbose: Any) -> None:
    """Predict a file of the task, which is read as a whole."""
    data = run.read_file(source, **run.recipe.unlabelled)
    model = run.load()
    predictions = run.recipe.kind.predict(model, data, verbose)
    if target.name in _submissions(run.task):
        if not np.isfinite(predictions).all():  # Their greatest would be the first class.
            raise ValueError("`predictions` must be finite. Received: predictions with NaN or infinity")
        write_submission(target.parent, target.stem, predictions.argmax(-1) if data.class_names else predictions)
    else:
        _write_all(target, run, model, data, predictions)


def _predict_lines(run: Run, source: str | os.PathLike[str] | None, target: Path, verbose: Any) -> None:
    """Predict lines, of which a block is in memory at a time."""
    kind, own_table = run.recipe.kind, "text" in run.recipe.options
    fields = len(run.text or ("text",)) if own_table else kind.fields

    def blocks() -> Iterator[Data]:
        lines = _lines(source)
        while block := list(islice(lines, _BLOCK)):
            yield from_lines(block, fields, tabs=not own_table)

    if source is not None and not _is_pipe(Path(source)):  # A pipe can be read only once.
        for _ in blocks():  # Otherwise a bad last line would cost the predictions for all others.
            pass
    model = run.load()
    predicted = (kind.records(model, data, kind.predict(model, data, verbose)) for data in blocks())
    _write(target, chain.from_iterable(predicted))


def _is_own(source: Path, recipe: Recipe) -> bool:
    if source.suffix.lower() in recipe.suffixes:
        return True
    return (
        recipe.is_begin is not None and source.is_file() and recipe.is_begin(list(islice(read_lines(source), _FIRST)))
    )


def _is_pipe(source: Path) -> bool:
    return source.exists() and not source.is_file() and not source.is_dir()


def write_predictions(folder: Path, run: Run, model: Any, data: Data, predictions: Any) -> None:
    """Write the predictions on a dev set: SQuAD's official files, or JSON lines for other tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_all(folder if isinstance(run.recipe.kind, Answers) else folder / "dev.jsonl", run, model, data, predictions)


def _write_all(target: Path, run: Run, model: Any, data: Data, predictions: Any) -> None:
    if isinstance(run.recipe.kind, Answers):
        assert data.ids is not None
        write_squad_predictions(target, data.ids, predictions, model.null_threshold)
    else:
        _write(target, run.recipe.kind.records(model, data, predictions))


def _lines(source: str | os.PathLike[str] | None) -> Iterator[tuple[str, str]]:
    name = "standard input" if source is None else os.fspath(source)
    open_file = open if source is not None else lambda *_: nullcontext(sys.stdin.buffer)
    return ((f"{name}, line {n}", line) for n, line in enumerate(read_lines(name, True, open_file, whole=True), 1))


def _write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write a JSON object per line, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside, beside.open("w", encoding="utf-8", newline="\n") as file:
        for number, record in enumerate(records, 1):
            try:
                line = json.dumps(record, ensure_ascii=False, allow_nan=False)
            except ValueError:
                raise ValueError(
                    f"`predictions` must be finite. Received: NaN or infinity for line {number} of {path}"
                ) from None
            file.write(line + "\n")

"""The files that SQuAD's official evaluations read, and the n-best file beside them."""

import json
import os
import reprlib
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from keras_bert_zoo.files import check_local, replacing
from keras_bert_zoo.json_files import write_json
from keras_bert_zoo.text.answers import FoundAnswers


def write_squad_predictions(
    directory: str | os.PathLike[str],
    ids: Sequence[str],
    found: Sequence[FoundAnswers],
    null_threshold: float | None = None,
) -> None:
    """Write `predictions.json`, `nbest_predictions.json` and, with a threshold, `null_odds.json`.

    The format is that of google-research/bert's run_squad.py. Each file is written completely or not at all. Without a
    threshold, a `null_odds.json` of earlier predictions is deleted.

    Args:
        directory: Directory of the files, created if missing.
        ids: Ids of the questions.
        found: Results of `BertQuestionAnswerer.find_answers`, one per question.
        null_threshold: The threshold of the answerer.

    Example:

    ```python
    dev = read_squad("dev-v2.0.json")
    found = answerer.find_answers((dev.question, dev.context))
    write_squad_predictions("out", dev.id, found, answerer.null_threshold)
    # With the threshold, as the default takes probabilities:
    # python evaluate-v2.0.py dev-v2.0.json out/predictions.json --na-prob-file out/null_odds.json --na-prob-thresh …
    ```
    """
    check_local(directory=directory)
    if len(set(ids)) != len(ids) or len(ids) != len(found):
        raise ValueError(
            "`ids` must be different, one for each question. "
            f"Received: {len(set(ids))} different of {len(ids)}, {len(found)} questions"
        )
    answers = dict(zip(ids, found, strict=True))
    for name, one in answers.items():
        numbers = (number for span in one.n_best for number in (span.probability, span.start_logit, span.end_logit))
        if not all(map(isfinite, (one.null_odds, *numbers))):
            raise ValueError(f"`found` must be finite. Received: NaN or infinity for question {reprlib.repr(name)}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "predictions.json", {name: one.best(null_threshold).text for name, one in answers.items()})
    _write_n_best(folder / "nbest_predictions.json", answers)
    null_odds = folder / "null_odds.json"
    if null_threshold is None:
        null_odds.unlink(missing_ok=True)
    else:
        write_json(null_odds, {name: one.null_odds for name, one in answers.items()})


def _write_n_best(path: Path, answers: dict[str, FoundAnswers]) -> None:
    """Write one span per line, question by question: the text of all at once would take several times their memory."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    fields = ("text", "probability", "start_logit", "end_logit")
    with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
        comma = ""
        file.write("{")
        for name, one in answers.items():
            spans = ",".join(f"\n    {encode({f: getattr(span, f) for f in fields})}" for span in one.n_best)
            file.write(f"{comma}\n  {encode(str(name))}: [{spans}\n  ]")
            comma = ","
        file.write("\n}\n")

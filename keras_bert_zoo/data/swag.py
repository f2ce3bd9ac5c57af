"""Multiple choice: SWAG (Zellers et al. 2018) and DREAM (Sun et al. 2019)."""

import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_bert_zoo.data.columns import Columns, Labels, check_text, class_reader
from keras_bert_zoo.data.tables import Row, Source, open_table
from keras_bert_zoo.files import TEXT_BYTES
from keras_bert_zoo.json_files import read_json_list

_ENDINGS = ("ending0", "ending1", "ending2", "ending3")


def read_swag(source: Source, labels: bool = True) -> Columns:
    """Read SWAG's `train.csv`, `val.csv` or `test.csv`, or one part of Hugging Face's data set `swag`.

    Args:
        source: The file, or the part of the data set.
        labels: False reads only texts, if labels do not matter or something else stands in their place.

    Returns:
        `Columns`: first sentences, each with four complete second sentences to choose from, and the number of the right
        one; no `y` for a test set, whose labels are missing or -1.

    Raises:
        ValueError: Something is not as expected; the message names the file and the line.
    """
    table = open_table(source)
    labelled = labels and table.has("label")
    read_label = class_reader(("0", "1", "2", "3"))
    contexts, choices, y = [], [], Labels()
    for place, values in table.select("sent1", "sent2", *_ENDINGS, *["label"] * labelled):
        for text in values[:6]:
            check_text(place, text)
        contexts.append(values[0])
        choices.append([f"{values[1]} {ending}" for ending in values[2:6]])
        if labelled:
            y.add(place, read_label(place, values[6]))
    return Columns((contexts, choices), y.column() if labelled else None)


def read_dream(source: Source) -> Columns:
    """Read DREAM's `train.json`, `dev.json` or `test.json`, or one part of Hugging Face's data set `dream`.

    Args:
        source: The file, or the part of the data set.

    Returns:
        `Columns`: dialogues with one turn per line, each with the question followed by each choice, and the number of
        the right one.

    Raises:
        ValueError: Something is not as expected; the message names the file and the dialogue.
    """
    if isinstance(source, (str, os.PathLike)):
        rows = _dream_rows(Path(source))
    else:
        rows = open_table(source).select("dialogue", "question", "choice", "answer")
    contexts, choices, y = [], [], []
    for place, (turns, question, options, answer) in rows:
        check_text(place, question)
        for name, texts, least in (("dialogue", turns, 1), ("choice", options, 2)):
            if not isinstance(texts, list) or len(texts) < least or not all(isinstance(text, str) for text in texts):
                raise ValueError(
                    f"{place}: `{name}` must be a list of strings, at least {least} of them. "
                    f"Received: {reprlib.repr(texts)}"
                )
            for text in texts:
                check_text(place, text, f"`{name}`")
        if answer not in options:
            raise ValueError(f"{place}: `answer` must be one of the choices. Received: {reprlib.repr(answer)}")
        contexts.append("\n".join(turns))
        choices.append([f"{question} {option}" for option in options])
        y.append(options.index(answer))
    return Columns((contexts, choices), y)


def _dream_rows(path: Path) -> Iterator[Row]:
    """Yield the questions of a file, in which each entry is `[turns, questions, id]`."""
    if not path.is_file():
        raise ValueError(f"{path} must be a JSON file. Received: no such file")
    for number, entry in enumerate(read_json_list(path, "a JSON list of dialogues", TEXT_BYTES)):
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[1], list):
            raise ValueError(
                f"{path}, dialogue {number} must be [turns, questions, id]. Received: {reprlib.repr(entry)}"
            )
        turns, questions, name = entry
        for place, question in enumerate(questions):
            yield f"{path}, dialogue {reprlib.repr(name)}, question {place}", [turns, *_fields(path, name, question)]


def _fields(path: Path, name: Any, question: Any) -> list[Any]:
    if not isinstance(question, dict) or not {"question", "choice", "answer"} <= set(question):
        raise ValueError(
            f"{path}, dialogue {reprlib.repr(name)}: a question must have `question`, `choice` and `answer`. "
            f"Received: {reprlib.repr(question)}"
        )
    return [question["question"], question["choice"], question["answer"]]

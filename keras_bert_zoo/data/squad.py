"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), and files in their format, such as XQuAD or your own."""

import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_bert_zoo.data.columns import check_text
from keras_bert_zoo.data.tables import Row, Source, open_table
from keras_bert_zoo.files import TEXT_BYTES
from keras_bert_zoo.json_files import read_json
from keras_bert_zoo.text.characters import has_text


class Answer(NamedTuple):
    """An answer: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


class SquadColumns(NamedTuple):
    """The questions of a file, in its order.

    Attributes:
        id: Unique id of the question.
        question: Text of the question.
        context: Paragraph that the question is about.
        answers: All given answers: one in training sets, several in dev sets, none if there is no answer or answers
            were not read.
        impossible: Whether there is no answer, as in SQuAD 2.0; False if answers were not read.
        title: Title of the article, or `""`.
    """

    id: list[str]
    question: list[str]
    context: list[str]
    answers: list[list[Answer]]
    impossible: list[bool]
    title: list[str]


def read_squad(source: Source, labels: bool = True) -> SquadColumns:
    """Read questions, contexts and answers.

    Args:
        source: An official file of SQuAD 1.1 or 2.0, or one part of Hugging Face's data sets `squad` or `squad_v2`.
        labels: False reads only questions and contexts, if there are no answers or they do not matter.

    Raises:
        ValueError: Something is not as expected, such as an answer that is not at its `answer_start`; the message names
            the file, article, paragraph and question.
    """
    if isinstance(source, (str, os.PathLike)):
        rows = _file_rows(Path(source), labels)
    else:
        table = open_table(source)
        titled = table.has("title")
        rows = table.select("id", "question", "context", *["answers"] * labels, *["title"] * titled)
        if not labels:
            rows = ((place, [*fields[:3], [], *fields[3:]]) for place, fields in rows)
    columns = SquadColumns([], [], [], [], [], [])
    seen: set[str] = set()
    for place, (name, question, context, answers, *rest) in rows:
        title = rest[0] if rest else ""
        for field, text in (("id", name), ("question", question), ("context", context), ("title", title)):
            check_text(place, text, f"`{field}`")
        if name in seen:
            raise ValueError(
                f"{place}: `id` must be different for each question. Received: {reprlib.repr(name)} a second time"
            )
        seen.add(name)
        columns.id.append(name)
        columns.question.append(question)
        columns.context.append(context)
        columns.answers.append([_answer(place, context, answer) for answer in _objects_of(place, answers)])
        columns.impossible.append(labels and not columns.answers[-1])
        columns.title.append(title)
    return columns


def _file_rows(path: Path, labels: bool) -> Iterator[Row]:
    if not path.is_file():
        raise ValueError(f"{path} must be a JSON file. Received: no such file")
    for article in _objects(str(path), read_json(path, TEXT_BYTES), "data"):
        title = article.get("title", "")
        article_place = f"{path}, article {reprlib.repr(title)}"
        for number, paragraph in enumerate(_objects(article_place, article, "paragraphs")):
            place = f"{article_place}, paragraph {number}"
            for question in _objects(place, paragraph, "qas"):
                asked = f"{place}, question {reprlib.repr(question.get('id'))}"
                answers = _objects(asked, question, "answers") if labels else []
                if labels and question.get("is_impossible", not answers) != (not answers):
                    raise ValueError(
                        f"{asked}: `is_impossible` must be true if `answers` is empty, and false otherwise. "
                        f"Received: {reprlib.repr(question['is_impossible'])} and {len(answers)} answers"
                    )
                yield asked, [question.get("id"), question.get("question"), paragraph.get("context"), answers, title]


def _objects(place: str, holder: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = holder.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{place}: `{name}` must be a list of JSON objects. Received: {reprlib.repr(value)}")
    return value


def _objects_of(place: str, answers: Any) -> list[dict[str, Any]]:
    """Return the answers in the format of the files; Hugging Face's data sets have one list per field."""
    if not isinstance(answers, dict):
        return _objects(place, {"answers": answers}, "answers")
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise ValueError(
            f"{place}: `answers` must hold the lists `text` and `answer_start`, of equal length. "
            f"Received: {reprlib.repr(answers)}"
        )
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _answer(place: str, context: str, answer: dict[str, Any]) -> Answer:
    text, start = answer.get("text"), answer.get("answer_start")
    if (
        not isinstance(text, str)
        or not has_text(text)
        or isinstance(start, bool)
        or not isinstance(start, (int, np.integer))
        or start < 0
    ):
        raise ValueError(
            f"{place}: an answer must have a `text`, of more than spaces and control characters, and an `answer_start` "
            f"of at least 0. Received: {reprlib.repr(answer)}"
        )
    if not context.startswith(text, start):
        found = context[start : start + len(text)]
        raise ValueError(
            f"{place}: the context must hold the answer {reprlib.repr(text)} at its `answer_start`. "
            f"Received: {reprlib.repr(found)} at {start}"
        )
    return Answer(text, int(start))

"""XNLI (Conneau et al. 2018): entailment in fifteen languages."""

import reprlib

from keras_bert_zoo.data.columns import Columns, class_reader, text_columns
from keras_bert_zoo.data.glue import GLUE
from keras_bert_zoo.data.tables import Source, Table, open_table

# The machine-translated training files spell one of the labels differently.
_LABELS = GLUE["mnli"].labels
_TRANSLATED_LABELS = ("entailment", "neutral", "contradictory")


def read_xnli(source: Source, language: str | None = None, labels: bool = True) -> Columns:
    """Read a part of XNLI.

    Args:
        source: `xnli.dev.tsv` or similar, or the same as `.jsonl`; `multinli.train.XX.tsv` of the translations; a file
            with the columns of a language, such as `sentence1_ur`; or one part of Hugging Face's data set of a
            language.
        language: Language such as `"de"`, if the file has several. None takes all rows; columns of several languages
            need one.
        labels: False reads only texts, if labels do not matter or something else stands in their place.

    Returns:
        `Columns` of pairs, with MNLI's class numbers; no `y` for a test set, whose labels are missing or -1.

    Raises:
        ValueError: Something is not as expected; the message names the file and the line.
    """
    table = open_table(source)
    texts, label = _layout(table, language)
    read_label = class_reader(_LABELS, _TRANSLATED_LABELS)
    labelled = labels and table.has(label)
    several = table.has("language")
    rows = table.select(*texts, *["language"] * several, *[label] * labelled)
    if several and language is not None:
        rows = (row for row in rows if row[1][2] == language)
    columns = text_columns(rows, pairs=True, read_label=read_label if labelled else None, class_names=_LABELS)
    if not columns.x[0]:
        wanted = "hold a row" if language is None else "hold a row of `language`"
        raise ValueError(f"{table.name} must {wanted}. Received: language={language!r}")
    return columns


def _layout(table: Table, language: str | None) -> tuple[tuple[str, str], str]:
    """Return the columns of the two texts, and that of the label."""
    if table.has("sentence1", "sentence2"):
        return ("sentence1", "sentence2"), "gold_label" if table.has("gold_label") else "label"
    for second in ("hypo", "hypothesis"):
        if table.has("premise", second):
            return ("premise", second), "label"
    found = sorted(name.removeprefix("sentence1_") for name in table.header if name.startswith("sentence1_"))
    if language is None and len(found) == 1:
        language = found[0]
    if language is None and found:
        raise ValueError(f"`language` must be one of {reprlib.repr(found)} for {table.name}. Received: language=None")
    return (f"sentence1_{language or 'XX'}", f"sentence2_{language or 'XX'}"), "label"

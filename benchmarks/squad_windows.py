"""Convert every answer of SQuAD files from characters to tokens of windows and back, and score it officially.

    KBZ_DATA=DATA python -m benchmarks.squad_windows

Each window is given logits that are certain of the target that `fit` would learn from it. The answer is what
`BertQuestionAnswerer` makes of such logits, with answers of any length and, as by default, of at most 30 tokens.
Prints, and writes to `--out`, how many of these answers the official evaluation scores 1.0, and lists those of any
length that it does not, with the reason. Needs no model.
"""

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

import keras_bert_zoo as kbz
from keras_bert_zoo.metrics import squad_v1_scores
from keras_bert_zoo.text.answers import search_answers

FILES = ("train-v1.1-subset", "dev-v1.1-part", "dev-v2.0-half")
VOCABULARIES = {"bert-base-uncased": True, "bert-base-cased": False}
HEADER = [
    "vocabulary", "file", "questions", "in several windows", "with an answer", "scored 1.0", "share",
    "of at most 30 tokens", "share", "learned at another place than the file's", "answers over 30 tokens",
]  # fmt: skip
OUT = Path(__file__).parent / "results" / "squad_windows.md"


class Numbers(NamedTuple):
    """A row of the table."""

    questions: int
    several: int
    answerable: int
    right: int
    right_short: int
    moved: int
    long: int


def certain_logits(windows, answers):
    """Return logits of windows that are sure of their targets, and less sure of `[CLS]` than of an answer."""
    logits = []
    for (start, end), length in zip(windows.targets(answers), windows.lengths, strict=True):
        own = np.zeros((2, length), "float32")
        own[0, start] += 10 if start else 1
        own[1, end] += 10 if end else 1
        logits.append(own)
    return logits


def reason(windows, question, answer):
    """Return why an answer did not come back."""
    first, last = windows.answer_tokens(question, answer.text, answer.start)
    rows = list(windows.windows_of(question))
    ends = windows.starts[rows] + windows.counts[rows]
    if not ((windows.starts[rows] <= first) & (ends > last)).any():
        return "no window holds it all"
    offsets = windows.context_offsets(question)
    cut = offsets[first, 0] < answer.start or offsets[last, 1] > answer.start + len(answer.text)
    return "the file's answer cuts a word" if cut else "other"


def check(columns, tokenizer):
    """Return numbers for the table, and the answers that did not come back."""
    windows = kbz.BertQuestionPreprocessor(tokenizer).pack((columns.question, columns.context))
    logits = certain_logits(windows, columns.answers)
    whole, short = (
        [found.best(0.0).text for found in search_answers(windows, logits, with_null=True, **limit)]
        for limit in ({"max_answer_tokens": windows.lengths.max()}, {})
    )
    right, right_short, moved, long, wrong = 0, 0, 0, 0, []
    for question, (answers, text) in enumerate(zip(columns.answers, whole, strict=True)):
        if not answers:
            assert text == short[question] == "", columns.id[question]
            continue
        answer = answers[0]
        first, last = windows.answer_tokens(question, answer.text, answer.start)
        moved += (first, last) != windows.token_span(question, answer.start, answer.start + len(answer.text))
        long += last - first >= 30
        right_short += is_right(answers, short[question])
        if is_right(answers, text):
            right += 1
        else:
            context = columns.context[question]
            around = context[max(answer.start - 15, 0) : answer.start + len(answer.text) + 15]
            wrong.append((reason(windows, question, answer), columns.id[question], answer, around, text))
    several = int((np.bincount(windows.questions) > 1).sum())
    return Numbers(len(whole), several, sum(map(bool, columns.answers)), right, right_short, moved, long), wrong


def is_right(answers, text):
    return squad_v1_scores([answers], [text])["exact_match"] == 100


def row(vocabulary, name, numbers):
    cells = [f"{number:,}" for number in numbers]
    for place, right in ((5, numbers.right_short), (4, numbers.right)):
        cells.insert(place, f"{100 * right / numbers.answerable:.2f} %")
    return [vocabulary, name, *cells]


def markdown(rows):
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the Markdown file to write (%(default)s)")
    arguments = parser.parse_args()
    if "KBZ_DATA" not in os.environ:
        parser.error("KBZ_DATA must name the folder that holds the data. Received: KBZ_DATA unset")
    data = Path(os.environ["KBZ_DATA"])
    table, lists = [HEADER], []
    for vocabulary, lowercase in VOCABULARIES.items():
        tokenizer = kbz.BertTokenizer(data / "vocab" / f"{vocabulary}.vocab.txt", lowercase=lowercase)
        of_files = []
        for name in FILES:
            numbers, wrong = check(kbz.data.read_squad(data / "squad" / f"{name}.json"), tokenizer)
            of_files.append(numbers)
            table.append(row(vocabulary, name, numbers))
            reasons = ", ".join(f"{count}: {why}" for why, count in Counter(why for why, *_ in wrong).most_common())
            lists.append(f"### {name}, {vocabulary}: {reasons or 'none'}")
            lists += ["\n".join(
                f"- {identity}: {answer.text!r} in {around!r} came back as {text!r}: {why}"
                for why, identity, answer, around, text in wrong
            )] * bool(wrong)  # fmt: skip
        table.append(row(vocabulary, "all", Numbers(*map(sum, zip(*of_files, strict=True)))))
    text = "\n\n".join([
        "# SQuAD answers through the windows",
        "Command: `KBZ_DATA=DATA python -m benchmarks.squad_windows`",
        "Length 384, stride 128, questions of 64. The first answer of each question, from characters to tokens and "
        "back, scored by the official evaluation against all answers of the question: of any length, and of at most 30 "
        "tokens, the answerer's default. Every question without an answer came back without one.",
        markdown(table),
        "## Those that are not scored 1.0, of any length",
        *lists,
    ])  # fmt: skip
    print(text)
    arguments.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

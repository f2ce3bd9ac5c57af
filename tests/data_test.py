"""Readers of the official files: every row of the real data, tiny files for the rest, and what is refused."""

import csv
import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from keras_bert_zoo import data as readers
from tests.helpers import left_to_torch, short_error

if left_to_torch():
    pytest.skip("files know no backend: once is enough", allow_module_level=True)

datasets = pytest.importorskip("datasets")


def written(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(read, *words):
    with short_error(*words, longest=400):
        read()


# --- GLUE

# task, folder, part, rows, first and last text, second texts, labels
REAL = [
    ("cola", "CoLA", "train", 8551, "Our friends won't buy this analysis, let alone the next one we propose.",
     "What all did you get for Christmas?", None, (1, 1)),
    ("cola", "CoLA", "dev", 1043, "The sailors rode the breeze clear of the rocks.",
     "John talked to Bill about himself.", None, (1, 1)),
    ("sst2", "SST-2", "train", 67349, "hide new secretions from the parental units",
     "a serious contender for the title .", None, (0, 0)),
    ("sst2", "SST-2", "dev", 872, "it 's a charming and often affecting journey .",
     "a performance that could not be improved upon . ' ", None, (1, 1)),
    ("mrpc", "MRPC", "train", 3668, 'Amrozi accused his brother, whom he called "the witness", of deliberately',
     "The 30-year bond US30YT=RR rose 22/32 for a yield of 4.31 percent, versus 4.35 percent at Wednesday's close.",
     ('Referring to him as only "the witness", Amrozi accused his brother of deliberately',
      "The 30-year bond US30YT=RR grew 1-3/32 for a yield of 4.30 percent, down from 4.35 percent late Wednesday."),
     (1, 0)),
    ("mrpc", "MRPC", "dev", 408, "He said the foodservice pie business", "propaganda of an alien ideology'.",
     ('"The foodservice pie business does not fit our long-term growth strategy.',
      "In Soviet times the Beatles' music \"was considered propaganda of an alien ideology."), (1, 1)),
    ("stsb", "STS-B", "train", 5749, "A plane is taking off.", "Putin spokesman: Doping charges appear unfounded",
     ("An air plane is taking off.", "The Latest on Severe Weather: 1 Dead in Texas After Tornado"), (5.0, 0.0)),
    ("stsb", "STS-B", "dev", 1500, "A man with a hard hat is dancing.",
     "New video shows US police officers beating mentally-ill man",
     ("A man wearing a hard hat is dancing.", "New York police officer critically wounded in hatchet attack"),
     (5.0, 0.0)),
    ("rte", "RTE", "train", 2490, "No Weapons of Mass Destruction Found in Iraq Yet.", "",
     ("Weapons of Mass Destruction Found in Iraq.", ""), (1, None)),
    ("rte", "RTE", "dev", 277, "Dana Reeve, the widow of the actor Christopher Reeve, has died of lung cancer",
     "", ("Christopher Reeve had an accident.", ""), (1, None)),
]  # fmt: skip


@pytest.mark.parametrize("task, folder, part, rows, first, last, second, labels", REAL)
def test_official_glue(data, task, folder, part, rows, first, last, second, labels):
    path = data / "glue" / folder / f"{part}.tsv"
    columns = readers.read_glue(task, path)
    texts = columns.x[0] if second else columns.x
    assert len(texts) == len(columns.y) == rows
    assert texts[0].startswith(first)
    assert texts[-1].endswith(last)
    if second:
        assert len(columns.x[1]) == rows
        assert columns.x[1][0].startswith(second[0])
        assert columns.x[1][-1].endswith(second[1])
    assert columns.y[0] == labels[0]
    assert labels[1] is None or columns.y[-1] == labels[1]
    # Every line, and not one more: the texts come in the file's order, as they stand there.
    lines = path.read_bytes().decode().split("\n")
    assert all(text in line for text, line in zip(texts[::-1], lines[-2::-1], strict=False))
    if task == "stsb":
        assert columns.class_names is None
        assert {type(score) for score in columns.y} == {float}
    else:
        assert set(columns.y) == {0, 1} == set(range(len(columns.class_names)))


def test_labels_mean_what_they_say(data):
    """Count whole lines by another way of reading."""
    rte = readers.read_glue("rte", data / "glue" / "RTE" / "dev.tsv")
    text = (data / "glue" / "RTE" / "dev.tsv").read_text(encoding="utf-8")
    assert rte.class_names == ["entailment", "not_entailment"]
    assert rte.y.count(1) == text.count("\tnot_entailment\n")
    cola = readers.read_glue("cola", data / "glue" / "CoLA" / "dev.tsv")
    assert cola.y.count(0) == (data / "glue" / "CoLA" / "dev.tsv").read_text().count("\t0\t")
    mrpc = readers.read_glue("mrpc", data / "glue" / "MRPC" / "dev.tsv")
    assert mrpc.y.count(1) == 279  # 68.4 %: what GLUE's majority baseline scores on its dev part.


GLUE_FILES = {
    "cola": ("a1\t0\t*\tHe \"ran.\na1\t1\t\tIt's so.\n", ['He "ran.', "It's so."], [0, 1], "unacceptable"),
    "sst2": ("sentence\tlabel\nso so \t0\ngood\t1\n", ["so so ", "good"], [0, 1], "negative"),
    "mrpc": ('\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\t"a b\tc"\r\n', (['"a b'], ['c"']), [1],
             "not_equivalent"),
    "stsb": ("index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
             "0\tg\tf\ty\to\ts\ts\ta\tb\t3.8\n", (["a"], ["b"]), [3.8], None),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\ta?\tb?\t1\n", (["a?"], ["b?"]), [1],
            "not_duplicate"),
    "mnli": ("index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
             "0\tp\tq\tg\t(a)\ta\tb\tneutral\tcontradiction\n", (["a"], ["b"]), [2], "entailment"),
    "qnli": ("index\tquestion\tsentence\tlabel\n0\ta?\tb\tentailment\n", (["a?"], ["b"]), [0], "entailment"),
    "rte": ("index\tsentence1\tsentence2\tlabel\n0\ta\u2028x\tb\u0085\tnot_entailment\n", (["a\u2028x"], ["b\u0085"]),
            [1], "entailment"),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1", (["a"], ["b"]), [1], "not_entailment"),
}  # fmt: skip


@pytest.mark.parametrize("task", readers.GLUE)
def test_every_glue_file(task, tmp_path):
    content, x, y, first_class = GLUE_FILES[task]
    columns = readers.read_glue(task, written(tmp_path, "train.tsv", content))
    assert (columns.x, columns.y) == (x, y)
    assert first_class is None if columns.class_names is None else columns.class_names[0] == first_class


@pytest.mark.parametrize(
    "task, content, x",
    [
        ("cola", "index\tsentence\n0\tso\n1\tis it\n", ["so", "is it"]),
        ("sst2", "index\tsentence\n0\tso\n", ["so"]),
        ("mrpc", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\ta\tb\n", (["a"], ["b"])),
        ("stsb", "index\tgenre\tsentence1\tsentence2\n0\tg\ta\tb\n", (["a"], ["b"])),
        ("qqp", "id\tquestion1\tquestion2\n0\ta\tb\n", (["a"], ["b"])),
        ("mnli", "index\tsentence1\tsentence2\n0\ta\tb\n", (["a"], ["b"])),  # The diagnostic set.
    ],
)
def test_test_sets_have_no_labels(task, content, x, tmp_path):
    columns = readers.read_glue(task, written(tmp_path, "test.tsv", content))
    assert (columns.x, columns.y) == (x, None)


def test_broken_lines_of_qqp_are_said(tmp_path, caplog):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    path = written(tmp_path, "train.tsv", header + '0\t1\t2\t"How\n"\twhy?\t0\n1\t3\t4\ta\tb\t1\n')
    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    columns = readers.read_glue("qqp", path)
    assert (columns.x, columns.y) == ((["a"], ["b"]), [1])
    assert "broken lines left out: 2; the first is line 2" in caplog.text
    # Without labels each row has its number in a submission.
    test = written(tmp_path, "test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\tc\n2\td\te\n")
    refused(lambda: readers.read_glue("qqp", test), "test.tsv, line 3: a row must have 3 fields. Received: 2")


@pytest.mark.parametrize(
    "task, source, x, y",
    [
        ("cola", {"sentence": ["a", "b"], "label": [1, 0], "idx": [0, 1]}, ["a", "b"], [1, 0]),
        ("mrpc", {"sentence1": ["a"], "sentence2": ["b"], "label": [1], "idx": [0]}, (["a"], ["b"]), [1]),
        ("mnli", {"premise": ["a"], "hypothesis": ["b"], "label": [2], "idx": [0]}, (["a"], ["b"]), [2]),
        ("stsb", {"sentence1": ["a"], "sentence2": ["b"], "label": [2.5]}, (["a"], ["b"]), [2.5]),
        ("stsb", {"sentence1": ["a"], "sentence2": ["b"], "label": [-1.0]}, (["a"], ["b"]), None),
        ("rte", {"sentence1": ["a", "c"], "sentence2": ["b", "d"], "label": [-1, -1]}, (["a", "c"], ["b", "d"]), None),
    ],
)
def test_hugging_face_data(task, source, x, y):
    for given in (
        source,
        datasets.Dataset.from_dict(source),
        datasets.Dataset.from_dict(source).with_format("numpy"),
        {name: [np.array(value)[()] for value in column] for name, column in source.items()},
        {name: np.array(column) for name, column in source.items()},
    ):
        columns = readers.read_glue(task, given)
        assert (columns.x, columns.y) == (x, y)


def test_labels_are_withheld_from_all_or_from_none():
    for task, labels in (("rte", [1, -1, -1, 0]), ("stsb", [2.5, -1.0, -1.0, 0.0])):
        rows = {"sentence1": list("aceg"), "sentence2": list("bdfh"), "label": labels}
        refused(
            lambda task=task, rows=rows: readers.read_glue(task, rows),
            "Row 1 must have a label, because other rows have one",
        )
    choices = {"sent1": ["a", "b"], "sent2": ["c", "d"], **{f"ending{i}": ["e", "f"] for i in range(4)}}
    refused(
        lambda: readers.read_swag({**choices, "label": [-1, 0]}), "Row 0 must have a label, because other rows have one"
    )
    assert readers.read_texts({"text": ["bad", "good"], "label": [-1, 1]}).y == [-1, 1]  # These are somebody's classes.
    assert readers.read_texts({"text": ["bad"], "label": [-1]}).y == [-1]


@pytest.mark.parametrize(
    "task, source, x",
    [
        ("sst2", {"sentence": ["a", "b"], "label": [-1, -1]}, ["a", "b"]),
        ("stsb", {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "score": [-1.0, -1.0]}, (["a", "b"], ["c", "d"])),
    ],
)
def test_withheld_labels_in_a_file(task, source, x, tmp_path):
    """Hugging Face's test sets keep their -1 when they are written as text."""
    path = tmp_path / "test.tsv"
    datasets.Dataset.from_dict(source).to_csv(path, sep="\t")
    assert readers.read_glue(task, path)[:2] == (x, None)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], lines[2].rpartition("\t")[0] + "\t1"]))
    refused(
        lambda: readers.read_glue(task, path), "line 2 must have a label, because other rows have one. Received: -1"
    )


def test_labels_that_do_not_matter(tmp_path):
    """Whatever stands in their place, or nothing."""
    glue = "sentence1\tsentence2\tlabel\na\tb\todd\nc\td\tentailment\n"
    path = written(tmp_path, "rte.tsv", glue)
    refused(lambda: readers.read_glue("rte", path), "rte.tsv, line 2: a label must be one of")
    assert readers.read_glue("rte", path, labels=False) == (
        (["a", "c"], ["b", "d"]), None, ["entailment", "not_entailment"],
    )  # fmt: skip
    bare = written(tmp_path, "test.tsv", "sentence1\tsentence2\na\tb\n")
    assert readers.read_glue("rte", bare, labels=False)[:2] == ((["a"], ["b"]), None)
    stsb = written(tmp_path, "stsb.tsv", "sentence1\tsentence2\tscore\na\tb\t\n")
    assert readers.read_glue("stsb", stsb, labels=False) == ((["a"], ["b"]), None, None)
    broken = written(tmp_path, "qqp.tsv", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t\n1\tc\n")
    assert readers.read_glue("qqp", broken, labels=False)[:2] == ((["a"], ["b"]), None)
    xnli = written(tmp_path, "xnli.tsv", "language\tgold_label\tsentence1\tsentence2\nde\t-\ta\tb\nur\tneutral\tc\td\n")
    assert readers.read_xnli(xnli, labels=False)[:2] == ((["a", "c"], ["b", "d"]), None)
    assert readers.read_xnli(xnli, "ur", labels=False)[:2] == ((["c"], ["d"]), None)
    swag = written(tmp_path, "swag.csv", SWAG.replace(",3\n", ",\n"))
    assert readers.read_swag(swag, labels=False)[:2] == (readers.read_swag(written(tmp_path, "a.csv", SWAG)).x, None)


@pytest.mark.parametrize(
    "task, content, words",
    [
        ("sst2", "sentence\tlabel\na\t1\nb\t2\n", ("line 3: a label must be one of ['0', '1']. Received: '2'",)),
        ("sst2", "sentence\tlabel\na\t1\nb 1\n", ("train.tsv, line 3: a row must have 2 fields. Received: 1",)),
        ("sst2", "sentence\tlabel\na\t1\t\n", ("train.tsv, line 2: a row must have 2 fields. Received: 3",)),
        ("sst2", "sentence\tlabel\n\n\na\t1\n", ("line 2: a row must have 2 fields. Received: 1",)),
        ("sst2", "text\tlabel\na\t1\n", ("must include ['sentence', 'label']. Received: ['text', 'label']",)),
        ("qqp", "id\tquestion1\tquestion2\tis_duplicate\n0\ta\tb\t1\t1\n", ("line 2: a row must have 4 fields",)),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t5.1\n",
         ("line 2: a score must be a number from 0 to 5. Received: '5.1'",)),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\t-2\n", ("line 2: a score must be",)),
        ("stsb", "index\tsentence1\tsentence2\tscore\n0\ta\tb\tnan\n", ("line 2: a score must be",)),
        ("mnli", "sentence1\tsentence2\tgold_label\na\tb\t-\n",
         ("line 2: a label must be one of ['entailment', 'neutral', 'contradiction']. Received: '-'",)),
        ("sst2", "", ("must hold at least one line. Received: an empty file",)),
        ("sst2", b"sentence\tlabel\n\xff\t1\n", ("train.tsv, line 2 must be UTF-8 text",)),
        ("sst2", "sentence\tlabel\n" + "a" * (16 * 2**20 + 1), ("line 2 must be at most 16 MiB",)),
    ],
)  # fmt: skip
def test_bad_glue_files(task, content, words, tmp_path):
    path = written(tmp_path, "train.tsv", content)
    refused(lambda: readers.read_glue(task, path), str(path), *words)


def test_bad_sources(tmp_path):
    two = {"sentence": ["a", "b"], "label": [1, True]}
    refused(lambda: readers.read_glue("sst2", two), "a label must be one of ['0', '1']. Received: True")
    refused(lambda: readers.read_glue("mnil", "x.tsv"), "`task` must be one of ['cola',", "Received: task='mnil'")
    refused(lambda: readers.read_glue("rte", tmp_path / "none.tsv"), "none.tsv must be a text file (No such file")
    refused(lambda: readers.read_glue("rte", 5), "The data must be a path, a mapping", "Received: int")
    refused(lambda: readers.read_glue("sst2", {"train": [], "test": []}), "The data set: the columns must include")
    refused(lambda: readers.read_glue("sst2", {"sentence": ["a"], "label": []}), "must be of one length")
    streamed = datasets.Dataset.from_dict({"sentence": ["a"], "label": [0]}).to_iterable_dataset()
    for source, words in (
        (streamed, "'sentence' of type IterableColumn"),
        ({"sentence": 5, "label": [0]}, "'sentence' of type int"),
        ({"sentence": "ab", "label": [0, 1]}, "'sentence' of type str"),
        ({"sentence": {"a": "b"}, "label": [0]}, "'sentence' of type dict"),
        ({"sentence": {"a", "b"}, "label": [0, 1]}, "'sentence' of type set"),
    ):
        refused(
            lambda source=source: readers.read_glue("sst2", source),
            "The columns must be lists in memory. Received:",
            words,
        )
    refused(
        lambda: readers.read_glue("sst2", {"sentence": ["a", 5], "label": [0, 1]}), "Row 1: a text must be a string"
    )
    refused(lambda: readers.read_glue("sst2", {"sentence": ["a"], "label": [[1]]}), "Row 0: a label must be one of")
    scored = {"sentence1": ["a"], "sentence2": ["b"], "label": [10**400]}
    refused(lambda: readers.read_glue("stsb", scored), "Row 0: a score must be a number from 0 to 5. Received: 1000")


def test_submissions(tmp_path):
    for name, predictions, lines in (
        ("CoLA", [0, 1], ["0\t0", "1\t1"]),
        ("MNLI-mm", np.array([2, 0, 1]), ["0\tcontradiction", "1\tentailment", "2\tneutral"]),
        ("AX", [1], ["0\tneutral"]),
        ("RTE", [1, 0], ["0\tnot_entailment", "1\tentailment"]),
        ("WNLI", [1], ["0\t1"]),
        ("STS-B", np.array([-0.2, 5.3, 2.71828, 3], "float32"), ["0\t0.000", "1\t5.000", "2\t2.718", "3\t3.000"]),
    ):
        path = readers.write_submission(tmp_path / "submission", name, predictions)
        assert path == tmp_path / "submission" / f"{name}.tsv"
        assert path.read_bytes().decode() == "\n".join(["index\tprediction", *lines, ""])
    assert len(list((tmp_path / "submission").iterdir())) == 6
    for name, predictions, words in (
        ("MNLI", [0], "`name` must be one of ['CoLA', "),
        ("CoLA", [0.0], "`predictions` must be class numbers of the shape [examples]"),
        ("CoLA", [[0, 1]], "Received: predictions.shape=(1, 2)"),
        ("CoLA", [0, 2], "`predictions` must be in [0, 2). Received: predictions with 2"),
        ("STS-B", [[1.0]], "`predictions` must be scores of the shape [examples]"),
        ("STS-B", [float("nan")], "`predictions` must be finite"),
    ):
        refused(lambda name=name, predictions=predictions: readers.write_submission(tmp_path, name, predictions), words)


# --- XNLI


def test_official_xnli(data):
    columns = readers.read_xnli(data / "multilingual" / "xnli.en-ur.dev.tsv")
    assert len(columns.x[0]) == len(columns.x[1]) == len(columns.y) == 2490
    assert columns.x[0][0] == "اور اس نے کہا امّی، میں گھر آگیا ہوں۔"
    assert columns.x[1][-1] == "بیان بہتر ہے."
    assert [columns.y.count(number) for number in range(3)] == [830, 830, 830]
    assert [columns.class_names[number] for number in (columns.y[0], columns.y[1], columns.y[-1])] == [
        "neutral", "contradiction", "entailment",
    ]  # fmt: skip


def test_layouts_of_xnli(tmp_path):
    official = (
        "language\tgold_label\tsentence1_parse\tsentence1\tsentence2\nde\tneutral\tp\ta\tb\nur\tentailment\tp\tc\td\n"
    )
    path = written(tmp_path, "xnli.dev.tsv", official)
    assert readers.read_xnli(path, "ur")[:2] == ((["c"], ["d"]), [0])
    assert readers.read_xnli(path)[:2] == ((["a", "c"], ["b", "d"]), [1, 0])
    refused(lambda: readers.read_xnli(path, "fr"), "must hold a row of `language`. Received: language='fr'")
    translated = written(tmp_path, "multinli.train.de.tsv", "premise\thypo\tlabel\na\tb\tcontradictory\n")
    assert readers.read_xnli(translated)[:2] == ((["a"], ["b"]), [2])
    assert readers.read_xnli({"premise": ["a"], "hypothesis": ["b"], "label": [1]})[:2] == ((["a"], ["b"]), [1])
    rows = [{"language": "de", "gold_label": "neutral", "sentence1": "a", "sentence2": "b", "genre": "g"}]
    lines = written(tmp_path, "xnli.dev.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert readers.read_xnli(lines, "de")[:2] == ((["a"], ["b"]), [1])
    named = {"sentence1": ["a"], "sentence2": ["b"], "label": ["neutral"]}
    assert readers.read_xnli(named)[:2] == ((["a"], ["b"]), [1])
    two = written(
        tmp_path, "two.tsv", "label\tsentence1_de\tsentence2_de\tsentence1_ur\tsentence2_ur\nneutral\ta\tb\tc\td\n"
    )
    assert readers.read_xnli(two, "ur").x == (["c"], ["d"])
    refused(lambda: readers.read_xnli(two), "`language` must be one of ['de', 'ur']")
    header = "label\t" + "\t".join(f"sentence1_{i:01000}" for i in range(9))
    refused(
        lambda: readers.read_xnli(written(tmp_path, "many.tsv", header)), "`language` must be one of ['000000000000."
    )
    refused(lambda: readers.read_xnli(two, "fr"), "must include ['sentence1_fr', 'sentence2_fr', 'label']")


# --- A user's own


def test_plain_tables(tmp_path):
    tsv = written(tmp_path, "a.tsv", 'text\tlabel\nsay "no\t1\n"so"\t2\n')
    assert readers.read_texts(tsv) == (['say "no', '"so"'], [1, 2], None)
    csv = written(tmp_path, "a.csv", 'id,left,right,mark\r\n1,"a, ""b""\nc",d,1.5\r\n2,e,,2\r\n')
    assert readers.read_texts(csv, ("left", "right"), "mark") == ((['a, "b"\nc', "e"], ["d", ""]), [1.5, 2.0], None)
    codes = written(tmp_path, "codes.csv", "text,label\na,007\nb,7\n")
    assert readers.read_texts(codes, numbers=False).y == ["007", "7"]
    for labels, numbers in (("-1 +2 007", [-1, 2, 7]), ("-1.5 .5 +2 3. 1e-3", [-1.5, 0.5, 2.0, 3.0, 0.001])):
        rows = "".join(f"a,{label}\n" for label in labels.split())
        assert repr(readers.read_texts(written(tmp_path, "n.csv", f"text,label\n{rows}")).y) == repr(numbers)
    assert readers.read_texts(csv, "right", label=None) == (["d", ""], None, None)
    named = written(tmp_path, "b.csv", "text,label\na,1\nb,one\n")
    assert readers.read_texts(named).y == ["1", "one"]
    rows = [{"text": "a", "label": ["x", "y"]}, {"label": [], "text": "b", "more": 1}]
    lines = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert readers.read_texts(lines) == (["a", "b"], [["x", "y"], []], None)
    rows = [{"text": "a", "label": 1, "note": "n"}, {"text": "b", "label": 2}]  # Nobody asks for the note.
    optional = written(tmp_path, "optional.jsonl", "\n".join(map(json.dumps, rows)))
    assert readers.read_texts(optional) == (["a", "b"], [1, 2], None)
    twice = written(tmp_path, "twice.csv", "note,text,note,label\nn,a,m,1\n")
    assert readers.read_texts(twice) == (["a"], [1], None)
    assert readers.read_texts({"text": ["a"], "label": ["x"]}) == (["a"], ["x"], None)
    assert readers.read_texts({"text": ["a"], "label": [np.int64(7)]}) == (["a"], [7], None)
    array = readers.read_texts({"text": np.array(["a"]), "label": np.array([7])})
    assert [type(array.x[0]), type(array.y[0])] == [str, int]
    whole = written(tmp_path, "whole.jsonl", '{"text": "\\ud83d\\ude00", "label": "\\ud83d\\ude00"}')  # Both halves.
    assert readers.read_texts(whole) == (["\U0001f600"], ["\U0001f600"], None)


def test_a_label_of_many_digits_is_read_once(tmp_path):
    """Cut into two numbers in each way, it would take minutes."""
    digits = "1" * 100_000
    path = written(tmp_path, "a.csv", f"text,label\na,{digits}x\n")
    start = time.process_time()
    assert readers.read_texts(path).y == [f"{digits}x"]
    assert time.process_time() - start < 5


def test_a_text_of_a_table_is_as_long_as_a_line(tmp_path):
    limit, text = csv.field_size_limit(), "a " * 100_000
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        path = written(tmp_path, name, f"text{mark}label\n{text}{mark}1\n")
        assert readers.read_texts(path).x == [text]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "text\tlabel\na\t1\n"),
        ("a.csv", "text,label\na,1\n"),
        ("a.jsonl", '{"text": "a", "label": 1}\n'),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n\r\n"])
def test_empty_lines_at_the_end_are_no_rows(name, content, end, tmp_path):
    assert readers.read_texts(written(tmp_path, name, content + end)) == (["a"], [1], None)


def test_an_empty_line_may_be_a_text(tmp_path):
    """In a table of one column it is a row, which predictions must match."""
    assert readers.read_texts(written(tmp_path, "a.tsv", "text\n\na\n\n"), label=None).x == ["", "a", ""]


def test_empty_lines_of_qqp(tmp_path, caplog):
    """Within a file they are broken lines."""
    caplog.set_level(logging.WARNING, "keras_bert_zoo")
    content = "question1\tquestion2\tis_duplicate\na\tb\t1\n\n\nc\td\t0\n\n"
    assert readers.read_glue("qqp", written(tmp_path, "train.tsv", content)).y == [1, 0]
    assert "broken lines left out: 2; the first is line 3" in caplog.text


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.txt", "", "The file must be one of .tsv, .csv, .jsonl. Received:"),
        ("a.csv", 'text,label\na,1\n"b,2\nc,3\n', "a.csv, line 3 must begin a CSV row (unexpected end of data)"),
        ("a.csv", 'text,label\na,1\n"b"x,2\n', "a.csv, line 3 must begin a CSV row ("),
        ("a.csv", "text,label\na,1,2\n", "a.csv, line 2: a row must have 2 fields. Received: 3"),
        ("a.csv", "text,label\na,1\n\nb,1\n", "a.csv, line 3: a row must have 2 fields. Received: 0"),
        ("a.csv", 'text,label\n"a\nb",1\nc\n', "a.csv, line 4: a row must have 2 fields. Received: 1"),
        ("a.csv", 'text,label\n"' + ("a" * 2**23 + "\n") * 2 + '",1\n', "line 2 must begin a CSV row (field larger"),
        ("a.csv", "text,label\na,\n", "a.csv, line 2: a label must be a name, a number or a list"),
        ("a.csv", "text,label\na,1\nb,1e999\n", "a.csv, line 3: a label must be a name, a number or"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n',
         "a.jsonl, line 2 must have the keys ['text', 'label']. Received: one without ['label']"),
        ("a.csv", "text,label,label\na,1,2\n", "a.csv: the columns must differ in name. Received: 'label' more than"),
        ("a.tsv", "text\ttext\tlabel\na\tb\t2\n", "a.tsv: the columns must differ in name. Received: 'text' more"),
        ("a.jsonl", '{"text": "a", "label": 1}\n[1]\n', "a.jsonl, line 2 must hold a JSON object. Received: list"),
        ("a.jsonl", '{"text": "a", "label": 1}\nno\n', "a.jsonl, line 2 must hold a JSON object (Expecting value"),
        ("a.jsonl", '{"text": "a", "label": 1}\n \r\n\n{"text": "b", "label": 1}\n',
         "a.jsonl, line 2 must hold a JSON object. Received: an empty line"),
        ("a.jsonl", "\n\n", "a.jsonl must hold at least one line. Received: an empty file"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1 must hold a JSON object. Received: one nested too deeply"),
        ("a.jsonl", '{"text": 5, "label": 1}\n', "a.jsonl, line 1: a text must be a string. Received: 5"),
        ("a.jsonl", '{"text": "a", "label": null}\n', "a.jsonl, line 1: a label must be a name, a number or a list"),
        ("a.jsonl", '{"text": "a", "label": NaN}\n', "a.jsonl, line 1: a label must be a name, a number or a list"),
        ("a.jsonl", '{"text": "a", "label": {"a": 1}}\n', "a.jsonl, line 1: a label must be a name, a number or"),
        ("a.jsonl", '{"text": "ab\\ud800", "label": 1}\n',
         "a.jsonl, line 1: a text must be valid Unicode. Received: half a surrogate pair at character 2"),
        ("a.jsonl", '{"text": "a", "label": "\\udc00"}\n', "a.jsonl, line 1: a label must be valid Unicode"),
        ("a.jsonl", '{"text": "a", "label": ["b", "\\udc00"]}\n', "a.jsonl, line 1: a label must be valid Unicode"),
        ("a.jsonl", "", "a.jsonl must hold at least one line. Received: an empty file"),
    ],
)  # fmt: skip
def test_bad_plain_tables(name, content, words, tmp_path):
    path = written(tmp_path, name, content)
    refused(lambda: readers.read_texts(path), words)


# --- SQuAD


def test_official_squad(data):
    train = readers.read_squad(data / "squad" / "train-v1.1-subset.json")
    assert {len(column) for column in train} == {11877}
    assert len(set(train.title)) == 44
    assert {len(answers) for answers in train.answers} == {1}
    assert (train.id[-1], train.question[-1]) == ("56df83025ca0a614008f9be5", "What is Dawn French's job?")
    assert train.answers[-1] == [("comedian", 254)]
    dev = readers.read_squad(data / "squad" / "dev-v1.1-part.json")
    assert (len(dev.id), any(dev.impossible)) == (4961, False)
    second = readers.read_squad(data / "squad" / "dev-v2.0-half.json")
    assert (len(second.id), sum(second.impossible)) == (6078, 3168)
    assert (second.title[0], second.question[0]) == ("Normans", "In what country is Normandy located?")
    assert second.answers[0] == [readers.Answer("France", 159)] * 4
    assert second.impossible[-1]
    for columns in (train, dev, second):
        for context, answers in zip(columns.context, columns.answers, strict=True):
            assert all(context[answer.start : answer.start + len(answer.text)] == answer.text for answer in answers)


@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_xquad(data, language):
    columns = readers.read_squad(data / "multilingual" / f"xquad.{language}.json")
    assert (len(columns.id), columns.id[-1]) == (1190, "5737a25ac3c5551400e51f54")


def squad(**question):
    asked = {"id": "q1", "question": "Who?", "answers": [{"text": "Rollo", "answer_start": 4}], **question}
    asked = {name: value for name, value in asked.items() if value is not None}
    return {"version": "1.1", "data": [{"title": "Normans", "paragraphs": [{"context": "Was Rollo.", "qas": [asked]}]}]}


def test_squad_with_a_byte_order_mark(tmp_path):
    marked, plain = (written(tmp_path, f"{len(mark)}.json", mark + json.dumps(squad())) for mark in ("\ufeff", ""))
    assert readers.read_squad(marked) == readers.read_squad(plain)


def test_squad_from_hugging_face():
    data = {
        "id": ["1", "2"], "title": ["T", "T"], "context": ["Was Rollo.", "None."], "question": ["Who?", "Why?"],
        "answers": [{"text": ["Rollo"], "answer_start": [4]}, {"text": [], "answer_start": []}],
    }  # fmt: skip
    columns = readers.read_squad(datasets.Dataset.from_dict(data))
    assert columns.answers == [[("Rollo", 4)], []]
    assert columns.impossible == [False, True]
    assert columns.title == ["T", "T"]
    bare = readers.read_squad(datasets.Dataset.from_dict(data).remove_columns("answers"), labels=False)
    assert (bare.question, bare.answers, bare.impossible) == (columns.question, [[], []], [False, False])
    assert readers.read_squad(datasets.Dataset.from_dict(data).with_format("numpy")) == columns
    answer = readers.read_squad(
        {**data, "answers": [{"text": ["Rollo"], "answer_start": [np.int64(4)]}] * 2, "context": ["Was Rollo."] * 2}
    ).answers[0][0]
    assert (answer, type(answer.start)) == (("Rollo", 4), int)
    for wrong in (
        {"text": ["Rollo"], "answer_start": []},
        {"text": 5, "answer_start": [4]},
        {"text": "R", "answer_start": [4]},
    ):
        refused(
            lambda wrong=wrong: readers.read_squad({**data, "answers": [wrong, wrong]}),
            "Row 0: `answers` must hold the lists `text` and `answer_start`, of equal length. Received: {",
        )


PLACE = "x.json, article 'Normans', paragraph 0"


@pytest.mark.parametrize(
    "content, words",
    [
        (squad(answers=[{"text": "Rollo", "answer_start": 5}]),
         f"{PLACE}, question 'q1': the context must hold the answer 'Rollo' at its `answer_start`. "
         "Received: 'ollo.' at 5"),
        (squad(answers=[{"text": "Rollo", "answer_start": -6}]), "`answer_start` of at least 0. Received:"),
        (squad(answers=[{"text": " \u200b", "answer_start": 0}]), "of more than spaces and control characters"),
        (squad(answers=[{"text": "Rollo", "answer_start": 10**30}]), "the context must hold the answer"),
        (squad(answers=[{"text": "", "answer_start": 0}]), "an answer must have a `text`"),
        (squad(answers=[{"text": "Rollo"}]), f"{PLACE}, question 'q1': an answer must have a `text`, of"),
        (squad(answers=["Rollo"]), f"{PLACE}, question 'q1': `answers` must be a list of JSON objects"),
        (squad(answers=None), f"{PLACE}, question 'q1': `answers` must be a list of JSON objects. Received: None"),
        (squad(is_impossible=True), "true if `answers` is empty, and false otherwise. Received: True and 1 answers"),
        (squad(answers=[], is_impossible=False), "Received: False and 0 answers"),
        (squad(id=7), f"{PLACE}, question 7: `id` must be a string. Received: 7"),
        (squad(question=None), f"{PLACE}, question 'q1': `question` must be a string. Received: None"),
        ({"data": [{"paragraphs": [{"qas": [{"id": "q", "question": "?", "answers": []}]}]}]}, "`context` must be a"),
        (squad(id="q\ud800"), f"{PLACE}, question 'q\\ud800': `id` must be valid Unicode. Received: half a surrogate "
         "pair at character 1"),
        (squad(question="\ud800"), f"{PLACE}, question 'q1': `question` must be valid Unicode"),
        (squad(answers=[{"text": "\ud800", "answer_start": 0}]), "the context must hold the answer '\\ud800' at its"),
        ({"data": [{"title": "T", "paragraphs": 5}]}, "x.json, article 'T': `paragraphs` must be a list of JSON"),
        ({"version": "1.1"}, "x.json: `data` must be a list of JSON objects. Received: None"),
        ([], "x.json must hold a JSON object. Received: list"),
    ],
)  # fmt: skip
def test_bad_squad(content, words, tmp_path):
    path = written(tmp_path, "x.json", json.dumps(content))
    refused(lambda: readers.read_squad(path), words)


def test_squad_ids_are_different(tmp_path):
    twice = squad()
    twice["data"] *= 2
    path = written(tmp_path, "x.json", json.dumps(twice))
    refused(lambda: readers.read_squad(path), "`id` must be different for each question. Received: 'q1' a second time")
    refused(lambda: readers.read_squad(tmp_path / "none.json"), "none.json must be a JSON file")
    long = squad(id="1" * 100_000, is_impossible="x" * 100_000)
    long["data"][0]["title"] = "T" * 100_000
    place = f"article 'TTTTTTTTTTTT...TTTTTTTTTTTTT', paragraph 0, question '{'1' * 12}...{'1' * 13}'"
    lengthy = written(tmp_path, "long.json", json.dumps(long))
    refused(
        lambda: readers.read_squad(lengthy),
        place,
        "and false otherwise. Received: 'xxxxxxxxxxxx...xxxxxxxxxxxxx' and 1",
    )
    del long["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"]
    long["data"] *= 2
    lengthy = written(tmp_path, "long.json", json.dumps(long))
    refused(lambda: readers.read_squad(lengthy), place, f"Received: '{'1' * 12}...{'1' * 13}' a second time")
    with path.open("wb") as file:
        file.truncate(257 * 2**20)
    refused(lambda: readers.read_squad(path), "x.json must be at most 256 MiB. Received: 257 MiB")


# --- Multiple choice


def test_official_dream(data):
    folder = data / "multiple_choice" / "dream"
    train = readers.read_dream(folder / "train.json")
    assert len(train.x[0]) == len(train.x[1]) == len(train.y) == 6116
    assert train.x[0][-1].splitlines()[0] == "W: Do you like this coat, or shall I take the blue one?"
    assert train.x[1][-1][1] == "Why does the woman want to get the coat? The price is reasonable."
    assert train.y[-1] == 1
    dev = readers.read_dream(folder / "dev.json")
    assert (len(dev.y), {len(choices) for choices in dev.x[1]}) == (2040, {3})
    assert dev.x[1][0][0] == "What's the woman probably going to do? To teach a different textbook."
    assert (dev.y[0], dev.y[-1]) == (1, 1)


SWAG = """\
,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,anet_1,3416,"A man, here He","A man, here.",He,gold,"sits, down.",runs.,sings.,"says ""no"".",3
"""


def test_swag(tmp_path):
    endings = ["He sits, down.", "He runs.", "He sings.", 'He says "no".']
    path = written(tmp_path, "train.csv", SWAG)
    assert readers.read_swag(path)[:2] == ((["A man, here."], [endings]), [3])
    test = "".join(line.rpartition(",")[0] + "\n" for line in SWAG.splitlines())
    assert readers.read_swag(written(tmp_path, "test.csv", test))[:2] == ((["A man, here."], [endings]), None)
    hub = {"sent1": ["a"], "sent2": ["b"], **{f"ending{i}": [str(i)] for i in range(4)}, "label": [2]}
    assert readers.read_swag(hub)[:2] == ((["a"], [["b 0", "b 1", "b 2", "b 3"]]), [2])
    assert readers.read_swag({**hub, "label": [-1]}).y is None
    refused(lambda: readers.read_swag({**hub, "ending2": ["\ud800"]}), "Row 0: a text must be valid Unicode")
    bad = written(tmp_path, "bad.csv", SWAG.replace(",3\n", ",4\n"))
    refused(
        lambda: readers.read_swag(bad), "bad.csv, line 2: a label must be one of ['0', '1', '2', '3']. Received: '4'"
    )
    cut = written(tmp_path, "cut.csv", SWAG.replace("ending3", "ending"))
    refused(lambda: readers.read_swag(cut), "cut.csv: the columns must include ['sent1',")


def test_dream_from_hugging_face():
    hub = {"dialogue": [["M: Hi.", "W: Ho."]], "question": ["Who?"], "choice": [["M", "W"]], "answer": ["W"]}
    assert readers.read_dream(datasets.Dataset.from_dict(hub))[:2] == (
        (["M: Hi.\nW: Ho."], [["Who? M", "Who? W"]]),
        [1],
    )


@pytest.mark.parametrize(
    "content, words",
    [
        ({}, "x.json must hold a JSON list of dialogues. Received: dict"),
        ([[["a"], []]], "x.json, dialogue 0 must be [turns, questions, id]. Received: [['a'], []]"),
        ([[["a"], [{"question": "q"}], "d"]], "dialogue 'd': a question must have `question`, `choice` and `answer`"),
        ([["a", [{"question": "q", "choice": ["x", "y"], "answer": "x"}], "d"]],
         "x.json, dialogue 'd', question 0: `dialogue` must be a list of strings, at least 1 of them. Received: 'a'"),
        ([[["a"], [{"question": "q", "choice": ["x"], "answer": "x"}], "d"]],
         "`choice` must be a list of strings, at least 2 of them"),
        ([[["a"], [{"question": "q", "choice": ["x", 1], "answer": "x"}], "d"]],
         "`choice` must be a list of strings, at least 2 of them"),
        ([[["a\udfff"], [{"question": "q", "choice": ["x", "y"], "answer": "x"}], "d"]],
         "x.json, dialogue 'd', question 0: `dialogue` must be valid Unicode. Received: half a surrogate pair at"),
        ([[["a"], [{"question": "q", "choice": ["x", "\ud800"], "answer": "x"}], "d"]], "`choice` must be valid"),
        ([[["a"], [{"question": "q", "choice": ["x", "y"], "answer": "z"}], "d"]],
         "x.json, dialogue 'd', question 0: `answer` must be one of the choices. Received: 'z'"),
        ([[["a"], [{}], "d" * 100_000]], "dialogue 'dddddddddddd...ddddddddddddd': a question must have"),
        ([[["a"], [{"question": 5, "choice": [], "answer": 5}], "d" * 100_000]],
         "dialogue 'dddddddddddd...ddddddddddddd', question 0: a text must be a string. Received: 5"),
    ],
)  # fmt: skip
def test_bad_dream(content, words, tmp_path):
    path = written(tmp_path, "x.json", json.dumps(content))
    refused(lambda: readers.read_dream(path), words)


def test_a_submission_is_written_as_a_whole(tmp_path, monkeypatch):
    readers.write_submission(tmp_path, "RTE", [0])
    before = (tmp_path / "RTE.tsv").read_bytes()

    def full(self, *arguments, **options):
        with open(self, "w") as file:
            file.write("in")
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="disk full"):
        readers.write_submission(tmp_path, "RTE", [1, 1])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"RTE.tsv": before}


def test_integers_may_have_a_sign(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,-1\nb,+2\n")
    y = readers.read_texts(tmp_path / "a.csv").y
    assert (y, {type(label) for label in y}) == ([-1, 2], {int})

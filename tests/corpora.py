"""Every text of the real data, corpus by corpus."""

import csv
import io
import json
import lzma
import tarfile

GLUE = {"SST-2": [0], "CoLA": [3], "MRPC": [3, 4], "STS-B": [7, 8], "RTE": [1, 2]}
# Vocabulary -> whether it is uncased.
VOCABULARIES = {
    "bert-base-uncased": True,
    "bert-base-cased": False,
    "bert-base-multilingual-cased": False,
    "bert-base-chinese": True,
}


def corpora(data):
    """Yield name and texts, reading one corpus at a time."""
    for task in GLUE:
        yield task, glue_texts(data, task)
    for name in ("train-v1.1-subset", "dev-v1.1-part", "dev-v2.0-half"):
        yield f"SQuAD {name}", squad_texts(data / "squad" / f"{name}.json")
    yield "CoNLL-2003", conll_texts(data)
    yield (
        "DREAM",
        list(json_strings(json.loads((data / "multiple_choice" / "dream" / "train.json").read_text("utf-8")))),
    )
    for path in sorted((data / "multilingual").iterdir()):
        yield path.name, multilingual_texts(path)
    yield "WikiText-2", lines((data / "corpus" / "wikitext2-valid.txt").read_text("utf-8"))
    for name, text in novels(data):
        yield name, lines(text)


def vocabulary(data, name):
    return data / "vocab" / f"{name}.vocab.txt"


def lines(text):
    return [line for line in text.split("\n") if line]


def glue_texts(data, task):
    rows = ((data / "glue" / task / f"{part}.tsv").read_text("utf-8").splitlines() for part in ("train", "dev"))
    fields = (line.split("\t") for part in rows for line in part)
    return [row[number] for row in fields for number in GLUE[task]]


def squad_texts(path):
    return list(json_strings(json.loads(path.read_text("utf-8"))))


def conll_texts(data):
    """Return the sentences, their words joined by spaces."""
    for_all = ((data / "conll2003" / name).read_text("utf-8").split("\n\n") for name in ("eng.train", "eng.testa"))
    return [" ".join(line.split()[0] for line in block.split("\n") if line) for part in for_all for block in part]


def multilingual_texts(path):
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return list(json_strings(json.loads(text)))
    return [field for row in csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE) for field in row]


def novels(data):
    with lzma.open(data / "corpus" / "novels-80.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member).read().decode("utf-8")


def json_strings(value):
    """Yield all strings in a JSON value that are not keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from json_strings(item)

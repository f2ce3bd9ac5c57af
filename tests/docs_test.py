"""Every code block of the README and the guides runs, one after the other, on toy files with the names that it uses.

The table below makes only those sizes smaller that cost time, and turns several machines into one. `text` blocks are
other people's commands, or need machines that are not here.
"""

import glob
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.presets import hub
from tests import finetuning_test as official
from tests.helpers import WORDS, randomise
from tests.layouts import write_tensorflow1

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md", DOCS / "index.md", DOCS / "is_my_run_normal.md",
    *sorted(DOCS.glob("guides/*.md")), *sorted(DOCS.glob("migration/*.md")),
]  # fmt: skip
NO_COMMAND = ("head", "make", "pip")
# What readers would write -> what a test has time for.
SMALLER = [
    (r"\bepochs=\d+", "epochs=1"), (r"\bsteps=\d+", "steps=2"), (r"\bsteps_per_epoch=\d+", "steps_per_epoch=2"),
    (r"\bbatch_size=\d{2,}", "batch_size=8"), (r"--steps \d+", "--steps 2"), (r"--batch-size \d+", "--batch-size 8"),
    (r"--save-every \d+", "--save-every 2"), (r"--sequence-length 512", "--sequence-length 128"),
    (r"\bsave_every=\d+", "save_every=2"),
    (r'"host0:12345", "host1:12345"', '"127.0.0.1:0"'),
]  # fmt: skip
SIZES = {
    "vocabulary_size": 60, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16,
    "max_sequence_length": 512,
}  # fmt: skip
VOCABULARY = [*WORDS, *"bcdefghijklmnoprst"]
# What the README's blocks take as given.
GIVEN = {
    "train_texts": ["a good film", "so bad"], "train_labels": [1, 0], "dev_texts": ["fine"], "dev_labels": [1],
    "questions": ["was it good ?", "is it warm ?"], "answers": ["very", "not so"], "labels": [1, 0],
    "texts": ["a good film", "so bad"],
}  # fmt: skip

if keras.backend.backend() != "torch":
    pytest.skip("the pages are the same on each backend: once is enough", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # transformers and keras-hub warn of themselves.


def blocks(page):
    """Return (language, code) of each block that is run."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert {language for language, _ in found} <= {"python", "shell", "text"}
    return [(language, code) for language, code in found if language != "text"]


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """A folder with everything that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    preprocessor = kbz.BertPreprocessor(kbz.BertTokenizer(VOCABULARY))
    backbone = kbz.BertBackbone(**SIZES)
    kbz.BertPretrainer(backbone, preprocessor).save_to_preset(folder / "path/to/bert")
    names = ["negative", "positive"]
    classifier = kbz.BertTextClassifier(backbone, class_names=names, preprocessor=preprocessor)
    for path in ("path/to/classifier", *(f"run{seed}" for seed in range(3))):
        randomise(classifier).save_to_preset(folder / path)
    _write_keras_hub(folder / "path/to/keras_hub_preset")
    _write_tensorflow1(folder)
    for part in ("train", "dev"):
        official.mrpc(folder / "glue_data", part)
        official.squad2(folder, part)
    official.mrpc(folder / "glue_data", "test", header="index\t#1 ID\t#2 ID\t#1 String\t#2 String")
    official.write(folder / "glue_data/MNLI/dev_matched.tsv", "sentence1\tsentence2\tgold_label", "a\tb\tneutral")
    for part in ("train", "dev"):
        official.write(
            folder / f"{part}.csv", "message,queue", *(f"{text},sales" for text in WORDS[5:9]), "a film,help"
        )
    sentences = "\n".join(f"{text.capitalize()}, and so {other}." for text in GIVEN["texts"] for other in WORDS[5:])
    for name in ("books", "novels", "held_out"):
        (folder / name).mkdir()
    for name in ("books/one.txt", "books/two.txt", "novels/one.txt", "held_out/one.txt", "sample.txt"):
        (folder / name).write_text(f"{sentences}\n\n{sentences}\n\n{sentences}")
    kbz.write_vocabulary(folder / "vocab.txt", VOCABULARY)
    tokenizer = kbz.BertTokenizer(VOCABULARY)
    kbz.pretraining.prepare(
        [folder / "sample.txt"], folder / "examples128", tokenizer, sequence_length=32, fix_masks=True, verbose=False
    )
    kbz.pretraining.write_records(folder / "examples128", folder / "made")
    (folder / "made/shard-00000-of-00001.tfrecord").rename(folder / "examples.tfrecord")
    return folder


def _write_keras_hub(directory):
    hub_models = pytest.importorskip("keras_hub").models
    sizes = {**SIZES, "num_layers": 12}  # keras-hub's preset is read without its config for this number only.
    backbone = hub_models.BertBackbone(vocabulary_size=sizes.pop("vocabulary_size"), **sizes)
    tokenizer = hub_models.BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = hub_models.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    hub_models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor).save_to_preset(directory)


def _write_tensorflow1(folder):
    transformers = pytest.importorskip("transformers")
    model = transformers.BertForPreTraining.from_pretrained(folder / "path/to/bert")
    classifier = transformers.BertForSequenceClassification.from_pretrained(folder / "path/to/bert", num_labels=3)
    for theirs, name in ((model, "tf1_bert"), (classifier, "tf1_mnli")):
        write_tensorflow1(theirs, folder / "path/to" / name)
        kbz.write_vocabulary(folder / "path/to" / name / "vocab.txt", VOCABULARY)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_runs(page, toys, monkeypatch, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    for path in toys.iterdir():
        (work / path.name).symlink_to(path)
    monkeypatch.chdir(work)
    monkeypatch.setattr(hub, "download", lambda address, load_weights: toys / "path/to/bert")
    names = dict(GIVEN)
    ran = 0
    for language, code in blocks(page):
        for pattern, smaller in SMALLER:
            code = re.sub(pattern, smaller, code)
        if language == "python":
            exec(compile(code, str(page), "exec"), names)
            ran += 1
        elif re.search(r"^(export )?[A-Z_]+=", code, re.MULTILINE):
            _run_in_shell(code)
            ran += 1
        else:
            ran += sum(_run(line) for line in code.replace("\\\n", " ").splitlines())
    assert ran


def _run(line):
    words = shlex.split(line, comments=True)
    if not words or words[0] in NO_COMMAND:
        return False
    assert words.pop(0) == "keras-bert-zoo", line
    arguments = [found for word in words for found in (sorted(glob.glob(word)) if "*" in word else [word])]
    assert cli.main(arguments) == 0, line
    return True


def _run_in_shell(code):
    """Run a block that sets variables: each command in a process of its own, those with `&` side by side."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = re.sub(r"_PORT=\d+", f"_PORT={port}", code)
    # Bash's own `wait` does not tell how they ended.
    code = re.sub(r"^wait$", "for job in $(jobs -p); do wait $job; done", code, flags=re.MULTILINE)
    python = shlex.quote(sys.executable)
    commands = (
        f'python() {{ {python} "$@"; }}\nkeras-bert-zoo() {{ {python} -m keras_bert_zoo "$@"; }}\npip() {{ :; }}\n'
    )
    ended = subprocess.run(
        ["bash", "-e", "-c", commands + code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert ended.returncode == 0, f"{code}\n{ended.stderr[-3000:]}"

"""Fine-tuning from official files to scores and predictions, from Python and from the console."""

import csv
import importlib
import io
import json
import logging
import os
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.checks import NotANumberError
from keras_bert_zoo.data import read_conll, read_glue, read_squad, read_swag, read_texts
from keras_bert_zoo.finetuning import RECIPES, Run, evaluate, finetune, predict
from keras_bert_zoo.finetuning.curve import train_seconds
from keras_bert_zoo.finetuning.kinds import Data
from keras_bert_zoo.models.loading import preset_digest
from keras_bert_zoo.training.runs import held, keep_rows
from tests.helpers import broken_off, other_weights, randomise, short_error, slow_on

SENTENCES = [
    "a good film",
    "it was fine .",
    "so warm",
    "the plot is dull",
    "bad cast !",
    "not good",
    "very slow",
    "fine",
]
OPTIONS = {"sequence_length": 80, "batch_size": 4, "learning_rate": 1e-2, "epochs": 1}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows))


def mrpc(folder, name, header="Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"):
    rows = [f"{i % 2}\t{i}\t{i}\t{text}\t{SENTENCES[-i]}" for i, text in enumerate(SENTENCES)]
    write(folder / "MRPC" / f"{name}.tsv", header, *rows)


def rte(folder, name, labels=True):
    rows = [f"{i}\t{text}\t{SENTENCES[-i]}" for i, text in enumerate(SENTENCES)]
    endings = [["\tentailment", "\tnot_entailment"][i % 2] for i in range(8)] if labels else [""] * 8
    header = "index\tsentence1\tsentence2" + "\tlabel" * labels
    write(folder / "RTE" / f"{name}.tsv", header, *(row + end for row, end in zip(rows, endings, strict=True)))


def stsb(folder, name):
    rows = [f"{i}\t{text}\t{SENTENCES[-i]}\t{i % 6 * 0.9:.3f}" for i, text in enumerate(SENTENCES)]
    write(folder / "glue" / "STS-B" / f"{name}.tsv", "index\tsentence1\tsentence2\tscore", *rows)


def conll(folder, name):
    lines = ["-DOCSTART- -X- O O", ""]
    for i, text in enumerate(SENTENCES):
        lines += [f"{word} X X {'I-LOC' if word in ('film', 'plot') else 'O'}" for word in text.split()]
        lines += ["", *["-DOCSTART- -X- O O", ""] * (i % 3 == 2)]
    write(folder / "conll2003" / {"train": "eng.train", "dev": "eng.testa"}[name], *lines)


def squad(folder, name, version="1.1", impossible=lambda i: {}):
    context = " ".join(SENTENCES)
    qas = [
        {"id": str(i), "question": text, "answers": [{"text": text, "answer_start": context.index(text)}]}
        | impossible(i)
        for i, text in enumerate(SENTENCES)
    ]
    path = folder / "squad" / f"{name}-v{version}.json"
    write(path, json.dumps({"data": [{"title": "", "paragraphs": [{"context": context, "qas": qas}]}]}))


def squad2(folder, name):
    squad(folder, name, "2.0", lambda i: {"is_impossible": True, "answers": []} if i % 2 else {"is_impossible": False})


def swag(folder, name):
    endings = [f"ending{i}" for i in range(4)]
    rows = [[text, "it is", *SENTENCES[i : i + 2], "good", "dull", i] for i, text in enumerate(SENTENCES[:4])]
    (folder / "swag").mkdir(parents=True, exist_ok=True)
    with (folder / "swag" / {"train": "train.csv", "dev": "val.csv"}[name]).open("w", newline="") as file:
        csv.writer(file).writerows([["sent1", "sent2", *endings, "label"], *rows])


def dream(folder, name):
    asked = {"question": "how was it ?", "choice": ["good", "dull", "slow"]}
    entries = [
        [[f"M: {text}"], [{**asked, "answer": asked["choice"][i % 3]}], str(i)] for i, text in enumerate(SENTENCES)
    ]
    write(folder / "dream" / f"{name}.json", json.dumps(entries))


def xnli(folder, name):
    """Write the training file of a language, in the words of its translation, or the dev file of all."""
    rows = [(text, SENTENCES[-i], i % 3) for i, text in enumerate(SENTENCES)]
    if name == "train":
        labels = ["neutral", "contradictory", "entailment"]
        lines = ["premise\thypo\tlabel", *(f"{a}\t{b}\t{labels[n]}" for a, b, n in rows)]
        write(folder / "multinli" / "multinli.train.en.tsv", *lines)
    else:
        labels = ["neutral", "contradiction", "entailment"]
        lines = [f"{['en', 'ur'][i % 2]}\t{labels[n]}\t{a}\t{b}" for i, (a, b, n) in enumerate(rows)]
        write(folder / "xnli.dev.tsv", "language\tgold_label\tsentence1\tsentence2", *lines)


def numbers(folder, name):
    write(folder / f"{name}.csv", "text,label", *(f"{text},{i % 3}.5" for i, text in enumerate(SENTENCES)))


# Sequence length, batch size, peak and epochs of each recipe.
NUMBERS = {
    # google-research/bert, README.md: the point of appendix A.3's grid that section 4.1 also has.
    **dict.fromkeys(("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"), (128, 32, 2e-5, 3)),
    **dict.fromkeys(("texts", "numbers"), (128, 32, 2e-5, 3)),
    "squad": (384, 32, 5e-5, 3),  # Section 4.2; run_squad.py for the length.
    "squad2": (384, 48, 5e-5, 2),  # Section 4.3.
    "swag": (128, 16, 2e-5, 3),  # Section 4.4.
    "conll": (512, 16, 5e-5, 4),  # Appendix A.3.
    "dream": (512, 24, 2e-5, 8),  # nlpdata/mrc_bert_baseline, README.md.
    "xnli": (128, 32, 5e-5, 2),  # google-research/bert, multilingual.md.
}


@pytest.mark.parametrize("task", RECIPES)
def test_a_run_has_the_numbers_of_the_paper(task):
    run = Run(task, "bert_base")
    assert (run.sequence_length, run.batch_size, run.learning_rate, run.epochs) == NUMBERS[task]
    assert run.warmup == 0.1  # google-research/bert, run_classifier.py and run_squad.py.


@pytest.mark.parametrize(
    "task, options, peak, warmup",
    [
        (kbz.BertTextClassifier, {"num_classes": 2}, 3e-5, 0.1),
        (kbz.BertNextSentencePredictor, {}, 3e-5, 0.1),
        (kbz.BertTextRegressor, {}, 3e-5, 0.1),
        (kbz.BertTokenClassifier, {"num_classes": 2}, 3e-5, 0.1),
        (kbz.BertFeatureTokenClassifier, {"num_classes": 2, "hidden_layers": [-1], "units": 4}, 1e-3, 0.1),
        (kbz.BertQuestionAnswerer, {}, 3e-5, 0.1),
        (kbz.BertMultipleChoice, {}, 2e-5, 0.1),
        (kbz.BertTextEmbedder, {}, 2e-5, 0.1),
        (kbz.BertMaskedLM, {}, 1e-4, 0.01),
        (kbz.BertPretrainer, {}, 1e-4, 0.01),
    ],
)
def test_what_compile_does_on_its_own(backbone, task, options, peak, warmup):
    optimizer = task(backbone, **options).optimizer
    assert isinstance(optimizer, kbz.AdamW)
    assert schedule_of(optimizer) == {"learning_rate": peak, "warmup": warmup, "total_steps": None, "power": 1.0}


def schedule_of(optimizer):
    return optimizer.get_config()["learning_rate"]["config"]


def test_the_model_and_its_schedule_are_the_run_s(start, tmp_path):
    numbers(tmp_path, "train")
    run = Run("numbers", start, data=tmp_path, dtype="mixed_bfloat16", warmup=0.25, **OPTIONS)
    built = run.build({})
    assert schedule_of(built.optimizer) == {"learning_rate": 1e-2, "warmup": 0.25, "total_steps": None, "power": 1.0}
    built.save_to_preset(tmp_path / "preset")
    loaded = replace(run, preset=tmp_path / "preset").load()
    assert [model.backbone.embeddings.compute_dtype for model in (built, loaded)] == ["bfloat16"] * 2


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def scores_of_written(task, folder, out):
    """Return what `kbz.metrics` says of the written predictions."""
    if task == "squad":
        said = json.loads((out / "predictions.json").read_text())
        return kbz.metrics.squad_v1_scores([[text] for text in SENTENCES], [said[str(i)] for i in range(8)])
    if task == "squad2":
        dev = read_squad(folder / "squad" / "dev-v2.0.json")
        said, odds = (json.loads((out / f"{name}.json").read_text()) for name in ("predictions", "null_odds"))
        assert set(said) == set(odds) == set(dev.id)
        return kbz.metrics.squad_v2_scores(dev.answers, [said[name] for name in dev.id])
    rows = lines_of(out / "dev.jsonl")
    if task == "conll":
        dev = read_conll(folder / "conll2003" / "eng.testa")
        assert [row["words"] for row in rows] == dev.words
        return kbz.metrics.entity_scores(dev.tags, [row["tags"] for row in rows])
    if task == "swag":
        dev = read_swag(folder / "swag" / "val.csv")
        return {"accuracy": kbz.metrics.accuracy(dev.y, [row["choice"] for row in rows])}
    if task == "dream":
        return {"accuracy": kbz.metrics.accuracy([i % 3 for i in range(8)], [row["choice"] for row in rows])}
    if task == "xnli":
        expected = [["neutral", "contradiction", "entailment"][i % 3] for i in range(8)]
        return {"accuracy": np.mean([row["label"] == label for row, label in zip(rows, expected, strict=True)])}
    if task == "numbers":
        said = [row["value"] for row in rows]
        return {"pearson": np.corrcoef([i % 3 + 0.5 for i in range(8)], said)[0, 1]}
    if task == "stsb":
        dev = read_glue(task, folder / "glue" / "STS-B" / "dev.tsv")
        return kbz.metrics.glue_scores(task, dev.y, [row["value"] for row in rows])
    dev = read_glue(task, folder / "MRPC" / "dev.tsv")
    return kbz.metrics.glue_scores(task, dev.y, [dev.class_names.index(row["label"]) for row in rows])


@pytest.mark.parametrize("task", [stsb, conll, squad, squad2, swag, dream, xnli, numbers])
def test_from_official_files_to_scores(task, start, tmp_path):
    """The scores are those of the written predictions, and those of the preset that is written."""
    name = task.__name__
    for part in ("train", "dev"):
        task(tmp_path / "data", part)
    run = Run(name, start, data=str(tmp_path / "data"), **OPTIONS)
    results = finetune(run, tmp_path / "run", verbose=0)
    assert results == json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["score"] == {RECIPES[name].score: results["scores"][RECIPES[name].score]}
    backend = keras.backend.backend()
    assert results["versions"] == {
        "keras_bert_zoo": kbz.__version__,
        "python": sys.version.split()[0],
        "keras": keras.__version__,
        backend: importlib.import_module(backend).__version__,
    }
    assert results["examples"]["dev"] == (4 if name == "swag" else 8)
    check_scores(results, name, tmp_path / "data", tmp_path / "run" / "predictions")
    if name == "squad2":
        preset = str(tmp_path / "run" / "preset")
        threshold = kbz.BertQuestionAnswerer.from_preset(preset).null_threshold
        assert threshold == results["scores"]["best_f1_thresh"]
        assert results["scores"]["f1"] == pytest.approx(results["scores"]["best_f1"])
        again = evaluate(replace(run, preset=preset))
        assert again["scores"] == pytest.approx(results["scores"], abs=1e-4)
        decided = {"task", "preset", "data", "dev", "dtype", "language", "text", "label"}
        assert set(again["run"]) == decided  # It trained nothing.


def check_scores(results, task, folder, out):
    for name, value in scores_of_written(task, folder, out).items():
        assert results["scores"][name] == pytest.approx(value, abs=1e-6), name


@slow_on("tensorflow", "jax")
def test_a_killed_run_ends_with_the_same_weights(start, tmp_path):
    """Dropout is on. The run is broken off after an epoch, and again once the next one is logged but not saved."""
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    run = Run("mrpc", start, data=str(tmp_path), **{**OPTIONS, "epochs": 2})
    whole = finetune(run, tmp_path / "whole", verbose=0)
    with broken_off():
        finetune(run, tmp_path / "killed", verbose=0)
    assert not (tmp_path / "killed" / "preset").exists()
    with (tmp_path / "killed" / "log.csv").open("a") as log:
        log.write("1,0,0,0,0,0\n")
    killed = finetune(run, tmp_path / "killed", verbose=0)
    states = [load_file(tmp_path / name / "state.safetensors") for name in ("whole", "killed")]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array, err_msg=name)
    check_scores(killed, "mrpc", tmp_path, tmp_path / "killed" / "predictions")
    assert {**killed, "train_seconds": 0} == {**whole, "train_seconds": 0}
    assert killed["run"] == json.loads((tmp_path / "killed" / "run.json").read_text())
    logs = [list(csv.DictReader((tmp_path / name / "log.csv").open())) for name in ("whole", "killed")]
    assert [row["epoch"] for row in logs[1]] == ["0", "1"]
    for one, other in zip(*logs, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert killed["train_seconds"] == pytest.approx(sum(float(row["seconds"]) for row in logs[1]), abs=0.1)
    with pytest.raises(ValueError, match=r"a run of the same configuration. Received: seed=2, before 12345"):
        finetune(replace(run, seed=2), tmp_path / "killed")
    before = (tmp_path / "killed" / "log.csv").stat().st_mtime_ns
    assert finetune(run, tmp_path / "killed") == killed
    assert (tmp_path / "killed" / "log.csv").stat().st_mtime_ns == before
    (tmp_path / "killed" / "results.json").unlink()  # As if it were not done, and its data had changed since.
    for part in ("train", "dev"):
        path = tmp_path / "MRPC" / f"{part}.tsv"
        text = path.read_text()
        path.write_text("".join(text.splitlines(keepends=True)[:-1]))
        with pytest.raises(ValueError, match="killed must be the data that it began with"):
            finetune(run, tmp_path / "killed", verbose=0)
        path.write_text(text)


@slow_on("tensorflow", "jax")
def test_a_run_stays_with_its_preset(start, tmp_path):
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    run = Run("mrpc", start, data=str(tmp_path), **{**OPTIONS, "epochs": 2})
    with broken_off():
        finetune(run, tmp_path / "run", verbose=0)
    for name, old, new in (
        ("config.json", '"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.5'),
        ("vocab.txt", "bad\ngood\n", "good\nbad\n"),
    ):
        path = Path(start, name)
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new))
        with pytest.raises(ValueError, match=r"The preset of the run in .* must be the one it began with"):
            finetune(run, tmp_path / "run", verbose=0)
        path.write_text(before)
    with other_weights(start), pytest.raises(ValueError, match=r"it began with. Received: a different .* or weights"):
        finetune(run, tmp_path / "run", verbose=0)
    with (
        held(tmp_path / "run" / "run.json", {}),
        pytest.raises(ValueError, match="must not be in use by another process"),
    ):
        finetune(run, tmp_path / "run", verbose=0)
    log = tmp_path / "run" / "log.csv"
    log.write_text(f"{log.read_text()}1,0.5")
    results = finetune(run, tmp_path / "run", verbose=0)
    assert results["examples"] == {"train": 8, "dev": 8}
    assert results["preset_digest"] == preset_digest(run.build(run.read_both()[2]))


def test_a_digest_is_of_what_training_starts_with(start):
    """It covers settings, vocabulary and weights, but no fresh head, whose weights differ each time."""

    def digest(**options):
        return preset_digest(kbz.BertTextClassifier.from_preset(start, **{"class_names": ["a", "b"], **options}))

    found = [digest(), digest(class_names=["b", "a"]), digest(sequence_length=70), digest(dropout=0.3)]
    with other_weights(start):
        found.append(digest())
    assert len(set(found)) == 5
    assert digest() == found[0]


def test_a_row_that_was_not_completed_is_none(tmp_path):
    log = tmp_path / "log.csv"
    for text, kept in (("epoch,seconds\n0,1\n1,2", [1]), ("epoch,sec", []), ("", [])):
        log.write_text(text)
        assert train_seconds(log) == sum(kept)
        keep_rows(log, 2)
        assert log.read_text() == text[: text.rfind("\n") + 1]


def tilted(model, head, values):
    """Make a model say the same to everything, by the bias of its head."""
    kernel, bias = model.get_layer(head).weights
    kernel.assign(np.zeros(kernel.shape))
    bias.assign(values)
    return model


def untrained(start, path, class_names):
    """Save and return a classifier that says something else to each text."""
    model = randomise(kbz.BertTextClassifier.from_preset(start, class_names=class_names))
    model.save_to_preset(path)
    return model


def check_lines(path, model, texts):
    """Check that each text has the prediction of its own."""
    logits = model.predict(texts, verbose=0).astype("float64")
    rows = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert len(set(rows[:, 0].round(3))) == len(rows)
    for said, row in zip(lines_of(path), rows, strict=True):
        assert said["label"] == model.class_names[row.argmax()]
        assert said["probabilities"] == pytest.approx(dict(zip(model.class_names, row, strict=True)), abs=1e-5)


def test_classes_keep_their_names_whatever_their_order(start, tmp_path):
    """GLUE numbers entailment 0; this preset has it as 1, in our layout and in google-research/bert's."""
    names = ["not_entailment", "entailment"]
    classifier = tilted(kbz.BertTextClassifier.from_preset(start, class_names=names), "classifier", [0.0, np.log(3.0)])
    classifier.save_to_preset(tmp_path / "rte")
    kbz.convert_preset(tmp_path / "rte", tmp_path / "tf1", to="tensorflow1")
    rte(tmp_path, "dev")
    rte(tmp_path, "test", labels=False)
    dev = (tmp_path / "RTE" / "dev.tsv").read_text().splitlines()
    (tmp_path / "RTE" / "dev.tsv").write_text("\n".join(dev[:4]) + "\n")  # Two of three are entailment.
    for preset in ("tf1", "rte"):
        run = Run("rte", str(tmp_path / preset), data=str(tmp_path))
        out = tmp_path / "out" / preset
        assert evaluate(run, out)["scores"] == {"accuracy": pytest.approx(2 / 3)}
        for said in lines_of(out / "predictions" / "dev.jsonl"):
            assert said["label"] == "entailment"
            assert said["probabilities"] == pytest.approx({"entailment": 0.75, "not_entailment": 0.25}, abs=1e-6)
        predict(run, out / "RTE.tsv", tmp_path / "RTE" / "test.tsv")
        written = (out / "RTE.tsv").read_text().splitlines()
        assert written == ["index\tprediction", *(f"{i}\tentailment" for i in range(8))]
    (tmp_path / "texts.jsonl").write_text('{"sentence1": "a film", "sentence2": "bad"}\n')
    with pytest.raises(ValueError, match="`out` must differ from `source`"):
        predict(run, tmp_path / "texts.jsonl", tmp_path / "texts.jsonl")
    assert "a film" in (tmp_path / "texts.jsonl").read_text()
    told = "`out` must be a .jsonl, or for a file of GLUE one of its submissions, ['RTE.tsv'] for rte. Received: out="
    endings = [(name, told) for name in ("MRPC.tsv", "rte.json", "rte.csv", "RTE.TSV", "none")]
    for name, words in (*endings, ("out", "must be a file. Received: out=")):
        with short_error(words):
            predict(run, tmp_path / name, tmp_path / "RTE" / "test.tsv")
    assert not [path for path in tmp_path.iterdir() if path.name in dict(endings)]
    other = kbz.BertTextClassifier.from_preset(start, class_names=["yes", "no"])
    other.save_to_preset(tmp_path / "other")
    with pytest.raises(ValueError, match="`preset` must have the classes"):
        evaluate(replace(run, preset=str(tmp_path / "other")))
    with pytest.raises(ValueError, match=r"`out` must be a directory. Received: out=.*RTE.tsv', a file"):
        evaluate(replace(run, dev="gone"), out / "RTE.tsv")  # Before anything is read.


@pytest.mark.parametrize("label", ["-1", "odd"])
def test_predictions_need_no_labels(label, start, tmp_path):
    """Test sets have other things in their place; a submission still numbers the classes as GLUE does."""
    texts = f"sentence1\tsentence2\tlabel\na film\tbad\t{label}\ngood\tso warm\tentailment"
    write(tmp_path / "rte.tsv", texts)
    write(tmp_path / "xnli.tsv", texts.replace("label", "gold_label"))
    swag(tmp_path, "dev")
    full = tmp_path / "swag" / "val.csv"
    rows = [line.rpartition(",")[0] for line in full.read_text().splitlines()]
    write(tmp_path / "swag.csv", f"{rows[0]},label", *(f"{row},{label}" for row in rows[1:]))
    names = ["not_entailment", "entailment"]
    classifier = tilted(kbz.BertTextClassifier.from_preset(start, class_names=names), "classifier", [0.0, np.log(3.0)])
    classifier.save_to_preset(tmp_path / "rte")
    names = ["neutral", "contradiction", "entailment"]
    classifier = kbz.BertTextClassifier.from_preset(start, class_names=names)
    tilted(classifier, "classifier", [0.0, 1.0, 0.0]).save_to_preset(tmp_path / "xnli")
    kbz.BertMultipleChoice.from_preset(start).save_to_preset(tmp_path / "choices")
    predict(Run("rte", tmp_path / "rte"), tmp_path / "RTE.tsv", tmp_path / "rte.tsv")
    assert (tmp_path / "RTE.tsv").read_text() == "index\tprediction\n0\tentailment\n1\tentailment\n"
    predict(Run("xnli", tmp_path / "xnli"), tmp_path / "xnli.jsonl", tmp_path / "xnli.tsv")
    write(
        tmp_path / "rows.jsonl",
        *(json.dumps({"premise": a, "hypothesis": b}) for a, b in (("a film", "bad"), ("good", "so warm"))),
    )
    predict(Run("xnli", tmp_path / "xnli"), tmp_path / "of_json.jsonl", tmp_path / "rows.jsonl")
    assert lines_of(tmp_path / "of_json.jsonl") == lines_of(tmp_path / "xnli.jsonl")
    assert [row["label"] for row in lines_of(tmp_path / "xnli.jsonl")] == ["contradiction"] * 2
    for name, file in (("full", full), ("odd", tmp_path / "swag.csv")):
        predict(Run("swag", tmp_path / "choices"), tmp_path / f"{name}.jsonl", file)
    assert lines_of(tmp_path / "odd.jsonl") == lines_of(tmp_path / "full.jsonl")


def test_a_submission_of_scores(start, tmp_path):
    stsb(tmp_path, "test")
    tilted(kbz.BertTextRegressor.from_preset(start), "regressor", [3.25]).save_to_preset(tmp_path / "stsb")
    test = tmp_path / "glue" / "STS-B" / "test.tsv"
    predict(Run("stsb", str(tmp_path / "stsb")), tmp_path / "out" / "STS-B.tsv", test)
    written = (tmp_path / "out" / "STS-B.tsv").read_text().splitlines()
    assert written == ["index\tprediction", *(f"{i}\t3.250" for i in range(8))]


def test_files_without_labels(start, tmp_path):
    """Test sets of SQuAD have no answers, those of a tagger only words: predictions are the same as with labels."""
    conll(tmp_path, "dev")
    squad2(tmp_path, "dev")
    words, questions = tmp_path / "conll2003" / "eng.testa", tmp_path / "squad" / "dev-v2.0.json"
    bare = "".join(line.split(" ")[0] + "\n" for line in words.read_text().splitlines())
    (tmp_path / "bare.bio").write_text(bare)
    (tmp_path / "test.txt").write_text(bare)  # Known by its first line.
    tagged = words.read_text().replace("-DOCSTART- -X- O O\n", "")
    assert "DOCSTART" not in tagged
    (tmp_path / "tagged.txt").write_text(f"\ufeff{tagged}")  # By a tag at the end of each line.
    asked = json.loads(questions.read_text())
    for row in asked["data"][0]["paragraphs"][0]["qas"]:
        del row["answers"], row["is_impossible"]
    (tmp_path / "bare.json").write_text(json.dumps(asked))
    kbz.BertTokenClassifier.from_preset(start, class_names=["O", "B-LOC"]).save_to_preset(tmp_path / "ner")
    kbz.BertQuestionAnswerer.from_preset(start, sequence_length=80).save_to_preset(tmp_path / "squad2")
    for task, preset, full, bare_file, ending in (
        ("conll", "ner", words, "bare.bio", ".jsonl"), ("squad2", "squad2", questions, "bare.json", ""),
    ):  # fmt: skip
        run = Run(task, str(tmp_path / preset))
        for name, file in (("full", full), ("bare", tmp_path / bare_file)):
            predict(run, tmp_path / task / f"{name}{ending}", file)
    for name in ("out.tsv", "out.jsonl"):
        with pytest.raises(ValueError, match=r"`out` must be a directory for a file of SQuAD. Received: out="):
            predict(run, tmp_path / name, questions)
    predict(Run("conll", str(tmp_path / "ner")), tmp_path / "conll" / "text.jsonl", tmp_path / "test.txt")
    assert lines_of(tmp_path / "conll" / "full.jsonl") == lines_of(tmp_path / "conll" / "text.jsonl")
    predict(Run("conll", str(tmp_path / "ner")), tmp_path / "conll" / "tagged.jsonl", tmp_path / "tagged.txt")
    found, known = (lines_of(tmp_path / "conll" / f"{name}.jsonl") for name in ("tagged", "full"))
    assert [row["words"] for row in found] == [row["words"] for row in known]
    assert lines_of(tmp_path / "conll" / "full.jsonl") == lines_of(tmp_path / "conll" / "bare.jsonl")
    with pytest.raises(ValueError, match=r"`out` must be a \.jsonl. Received: out="):
        predict(Run("conll", str(tmp_path / "ner")), tmp_path / "conll" / "text.txt", tmp_path / "test.txt")
    for file in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        said = [(tmp_path / "squad2" / name / file).read_text() for name in ("full", "bare")]
        assert said[0] == said[1] != "{}"
    with pytest.raises(ValueError, match=r"bare.bio, line 3 must have a word and its tag"):
        read_conll(tmp_path / "bare.bio")


def test_lines_become_json_lines(start, tmp_path, monkeypatch):
    tagger = kbz.BertTokenClassifier.from_preset(start, class_names=["O", "B-LOC", "I-LOC"])
    tilted(tagger, "classifier", [0.0, 9.0, 0.0]).save_to_preset(tmp_path / "ner")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a film\n\ngood\n")))
    predict(Run("conll", str(tmp_path / "ner")), tmp_path / "ner.jsonl")
    found = [[tuple(entity.values())[:4] for entity in row["entities"]] for row in lines_of(tmp_path / "ner.jsonl")]
    assert found == [[("a", "LOC", 0, 1), ("film", "LOC", 2, 6)], [], [("good", "LOC", 0, 4)]]
    answerer = kbz.BertQuestionAnswerer.from_preset(start, sequence_length=80)
    answerer.save_to_preset(tmp_path / "squad")
    write(tmp_path / "pairs", "a film\tthe plot is dull", "good\tso warm")
    predict(Run("squad", str(tmp_path / "squad")), tmp_path / "answers.jsonl", tmp_path / "pairs")
    for row, context in zip(lines_of(tmp_path / "answers.jsonl"), ("the plot is dull", "so warm"), strict=True):
        assert row["answer"] == context[row["start"] : row["end"]] != ""
    chooser = kbz.BertMultipleChoice.from_preset(start)
    chooser.save_to_preset(tmp_path / "swag")
    write(tmp_path / "choices", "a film\tgood\tbad\tdull", "so\twarm\tcold")
    predict(Run("swag", str(tmp_path / "swag")), tmp_path / "choices.jsonl", tmp_path / "choices")
    expected = chooser.choose((["a film", "so"], [["good", "bad", "dull"], ["warm", "cold"]]))
    for row, (choice, probabilities) in zip(lines_of(tmp_path / "choices.jsonl"), expected, strict=True):
        assert row["choice"] == choice
        assert row["probabilities"] == pytest.approx(probabilities, abs=1e-6)
    write(tmp_path / "one", "a film\tgood", "a film")
    with pytest.raises(
        ValueError, match=r"one, line 2 must hold two texts with a tab between them. Received: 'a film'"
    ):
        predict(Run("squad", str(tmp_path / "squad")), tmp_path / "none.jsonl", tmp_path / "one")
    for task, line, words in (
        ("squad", "a film\t", "two texts with a tab between them"),
        ("swag", "a film\tgood\t", "a text and, after tabs, its choices"),
    ):
        write(tmp_path / "one", line)
        with pytest.raises(ValueError, match=rf"one, line 1 must hold {words}. Received: 'a film"):
            predict(Run(task, str(tmp_path / task)), tmp_path / "none.jsonl", tmp_path / "one")
    assert not [path for path in tmp_path.iterdir() if "none" in path.name]
    classifier = kbz.BertTextClassifier.from_preset(start, class_names=["no", "yes"])
    classifier.save_to_preset(tmp_path / "texts")
    with pytest.raises(ValueError, match=r"pairs, line 1 must hold one text, without tabs \(--text a b is for pairs\)"):
        predict(Run("texts", str(tmp_path / "texts")), tmp_path / "none.jsonl", tmp_path / "pairs")
    write(tmp_path / "dev.csv", "text,label", "a film,yes", "good,maybe")
    with pytest.raises(ValueError, match=r"must be among the preset's classes, no, yes. Received: 'maybe'"):
        evaluate(Run("texts", str(tmp_path / "texts"), dev=str(tmp_path / "dev.csv")))
    write(tmp_path / "texts.txt", "a film")
    for task, lines, words in (
        ("stsb", "pairs", r"BertTextRegressor\. Received: .*regressor"),
        ("texts", "texts.txt", r"BertTextClassifier\. Received: .*classifier"),
        ("conll", "texts.txt", r"BertTokenClassifier\. Received: .*classifier"),
    ):
        with pytest.raises(ValueError, match=f"`preset` must be a fine-tuned {words}"):
            predict(Run(task, start), tmp_path / "none.jsonl", tmp_path / lines)


def test_what_is_wrong_is_said_before_anything_trains(start, tmp_path):
    mrpc(tmp_path, "train")
    mrpc(tmp_path, "dev")
    write(tmp_path / "bad.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t0\t0\ta\tb", "7\t0\t0\ta\tb")
    write(tmp_path / "test.tsv", "index\t#1 String\t#2 String", "0\ta\tb")
    for name, labels in (
        ("train", ("a", "b")),
        ("dev", ("a", "c")),
        ("fractions", ("0.5", "1")),
        ("alike", ("a", "a")),
        ("third", ("3.5", "2", "x")),
        ("large", ("1e39", "2")),
        ("lined", ("1_000", "2")),
        ("lengthy", ("a", "b" * 10**5)),
        ("unlabelled", ("a", "")),
    ):
        write(tmp_path / f"{name}.csv", "text,label", *(f"good,{label}" for label in labels))
    write(tmp_path / "long.jsonl", f'{{"text": "good", "label": {"9" * 400}}}')
    write(tmp_path / "quoted.jsonl", '{"text": "good", "label": "3"}')
    write(tmp_path / "halved.jsonl", '{"text": "good", "label": "\\ud800"}')
    write(tmp_path / "flag.jsonl", '{"text": "good", "label": true}')
    write(tmp_path / "seen.bio", "good O", "film B-LOC")
    write(tmp_path / "unseen.bio", "film I-LOC", "good O", "film I-PER")
    tagged = {"train": str(tmp_path / "seen.bio")}
    squad2(tmp_path, "train")
    answerable = {"train": str(tmp_path / "squad" / "train-v2.0.json")}
    invisible = {"id": "1", "question": "good", "answers": [{"text": "\u200b", "answer_start": 1}]}
    paragraph = {"context": "a\u200b film", "qas": [invisible]}
    write(tmp_path / "vain.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    data = {"data": str(tmp_path)}
    for task, options, words in (
        ("mrcp", data, "`task` must be one of ['cola', "),
        ("mrpc", data | {"language": "de"}, "`language` must be None for the task mrpc"),
        ("mrpc", data | {"epochs": 0}, "`epochs` must be a positive integer"),
        ("mrpc", data | {"limit": 0}, "`limit` must be a positive integer. Received: limit=0"),
        ("mrpc", data | {"warmup": 1.5}, "`warmup` must be a number in [0, 1)"),
        ("mrpc", data | {"strategy": "multi_worker"}, "`strategy` must be one of a single machine"),
        ("mrpc", data | {"strategy": "tpu:name"}, "`strategy` must be one of a single machine"),
        ("mrpc", data | {"strategy": "mirror"}, "must be None"),
        ("mrpc", {}, "`data` or `train` must be given"),
        ("qnli", data | {"data": "gone"}, "`data` must be a directory with train.tsv in it or in glue/QNLI"),
        (
            "texts",
            {"data": "gone"},
            "`data` must be a directory with train.tsv or train.csv or train.jsonl in it, unless",
        ),
        ("mrpc", data | {"dev": str(tmp_path / "bad.tsv")}, "bad.tsv, line 3: a label must be one of ['0', '1']"),
        ("mrpc", data | {"dev": str(tmp_path / "test.tsv")}, "test.tsv must have labels"),
        ("texts", data, "dev.csv, line 3: a label must be one of a, b. Received: 'c'"),
        ("texts", data | {"dev": str(tmp_path / "lengthy.csv")}, "Received: 'bbbbbbbbbbbb...bbbbbbbbbbbbb'"),
        (
            "conll",
            tagged | {"dev": str(tmp_path / "unseen.bio")},
            "unseen.bio, line 3: a tag must be O, or B-, I-, E- or S- with one of LOC.",
        ),
        (
            "texts",
            data | {"train": str(tmp_path / "fractions.csv")},
            "line 2: a label must be one of 0.5, 1. Received:",
        ),
        (
            "texts",
            data | {"train": str(tmp_path / "alike.csv")},
            "alike.csv must have labels of at least two classes. Received: a",
        ),
        ("texts", data | {"train": str(tmp_path / "unlabelled.csv")}, "unlabelled.csv, line 3: a label must be a name"),
        ("texts", data | {"text": "text"}, "`text` must be of type list[str] | None. Received: text='text'"),
        ("texts", data | {"text": [["a"]]}, "`text` must be a list of one column or two. Received: text=[['a']]"),
        (["mrpc"], data, "`task` must be of type str. Received: task=['mrpc']"),
        ("mrpc", {"data": 5}, "`data` must be of type str | None. Received: data=5"),
        (
            "numbers",
            data | {"train": str(tmp_path / "third.csv")},
            "third.csv, line 4: a label must be a number. Received: 'x'",
        ),
        ("numbers", data | {"train": str(tmp_path / "lined.csv")}, "lined.csv, line 2: a label must be a number"),
        ("numbers", data | {"train": str(tmp_path / "long.jsonl")}, "long.jsonl, line 1: a label must be a number"),
        ("numbers", data | {"train": str(tmp_path / "quoted.jsonl")}, "quoted.jsonl, line 1: a label must be a number"),
        (
            "numbers",
            data | {"train": str(tmp_path / "large.csv")},
            "large.csv, line 2: a label must be a number. Received: '1e39'",
        ),
        ("texts", data | {"train": str(tmp_path / "halved.jsonl")}, "line 1: a label must be valid Unicode"),
        (
            "numbers",
            data | {"train": str(tmp_path / "flag.jsonl")},
            "flag.jsonl, line 1: a label must be a number. Received: True",
        ),
        ("texts", data | {"train": str(tmp_path / "flag.jsonl")}, "numbers`. Received: True"),
        ("squad", answerable, "question '1' must have an answer"),
        (
            "squad",
            dict.fromkeys(("train", "dev"), str(tmp_path / "vain.json")),
            "question '1': an answer must have a `text`",
        ),
        ("mrpc", data | {"sequence_length": 128}, "`sequence_length` must be at most the backbone's"),
    ):
        with short_error(words):
            finetune(Run(task, start, **OPTIONS | options), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_paths_and_tuples_become_what_the_file_of_a_run_holds(tmp_path):
    run = Run("texts", tmp_path / "preset", data=tmp_path, text=("first", "second"))
    assert (run.preset, run.data, run.text) == (str(tmp_path / "preset"), str(tmp_path), ["first", "second"])


def test_several_classes_at_once_are_not_taken_for_one(start, tmp_path):
    classifier = kbz.BertTextClassifier.from_preset(start, class_names=["a", "b"], multi_label=True)
    classifier.save_to_preset(tmp_path / "several")
    (tmp_path / "in.txt").write_text("good\n")
    with pytest.raises(ValueError, match=r"`preset` must have one class for a text\. Received: one with several"):
        predict(Run("texts", tmp_path / "several"), tmp_path / "out.jsonl", tmp_path / "in.txt")
    assert not (tmp_path / "out.jsonl").exists()


def test_endings_in_capitals_are_endings(start, tmp_path):
    classifier = untrained(start, tmp_path / "preset", ["a", "b"])
    write(tmp_path / "IN.CSV", "text,label", "good,a")
    predict(Run("texts", tmp_path / "preset"), tmp_path / "out.jsonl", tmp_path / "IN.CSV")
    check_lines(tmp_path / "out.jsonl", classifier, ["good"])
    assert read_texts(tmp_path / "IN.CSV", label=None).x == ["good"]
    write(tmp_path / "N.CSV", "text,label", "good,3.5")
    assert read_texts(tmp_path / "N.CSV").y == [3.5]


@pytest.mark.parametrize(
    "task, train, expected",
    [
        ("texts", "text\tlabel\na\tx\nb\ty\nc\tz\n", (["a", "b"], ["x", "y"])),
        ("conll", "a O\n\n-DOCSTART-\n\nb O\n\nc B-z\n", ([[["a"]], [["b"]]], [[["O"]], [["O"]]])),
    ],
)
def test_of_a_few_examples_the_classes_are_those_of_all(task, train, expected, tmp_path):
    """Otherwise a rare class of the dev set would be refused."""
    files = {part: tmp_path / f"{part}.tsv" for part in ("train", "dev")}
    for file in files.values():
        file.write_text(train)
    few, dev, head = Run(task, "bert_base", limit=2, **{part: str(file) for part, file in files.items()}).read_both()
    assert ((few.x, few.y), few.size, dev.size) == (expected, 2, 3)
    assert Run(task, "bert_base", limit=9, **{part: str(file) for part, file in files.items()}).read_both()[0] == dev
    assert head["class_names"] == {"texts": ["x", "y", "z"], "conll": ["O", "B-z", "I-z"]}[task]


@pytest.mark.parametrize(
    "task, part, place",
    [
        ("xnli", "train", "XNLI-MT-1.0/multinli/multinli.train.de.tsv"),  # XNLI-MT-1.0.zip
        ("xnli", "dev", "XNLI-1.0/xnli.dev.tsv"),  # XNLI-1.0.zip
        ("xnli", "dev", "xnli/XNLI-1.0/xnli.dev.tsv"),
        ("swag", "train", "data/train.csv"),  # rowanz/swagaf
        ("dream", "dev", "data/dev.json"),  # nlpdata/dream
        ("mrpc", "train", "glue/MRPC/train.tsv"),
        ("squad", "dev", "dev-v1.1.json"),
    ],
)
def test_files_are_found_where_their_archives_have_them(task, part, place, tmp_path):
    write(tmp_path / place)
    language = {"language": "de"} if task == "xnli" else {}
    assert Run(task, "bert_base", data=tmp_path, **language).path(part) == tmp_path / place


def test_recipes_find_and_read_their_files(data):
    """Real data gives as many examples as the files have, and classes by their names."""
    for task, size in (("cola", 1043), ("sst2", 872), ("stsb", 1500), ("rte", 277)):
        read = Run(task, "bert_base", data=str(data)).read("dev")
        assert read.size == size
        assert set(read.y) == set(read.class_names) if task != "stsb" else max(read.y) == 5.0
    rte, _, _ = Run("rte", "bert_base", data=str(data), limit=100).read_both()
    assert rte.size == len(rte.y) == len(rte.x[0]) == len(rte.x[1]) == 100
    documents, _, _ = Run("conll", "bert_base", data=str(data), limit=200).read_both()
    starts = (data / "conll2003" / "eng.train").read_text().split("-DOCSTART-")[1:]
    sentences = [start.strip().count("\n\n") for start in starts]
    whole = [len(document) for document in documents.x[:-1]]
    assert whole == sentences[: len(whole)]
    assert (documents.size, sum(map(len, documents.x))) == (200, 200)
    dream = Run("dream", "bert_base", data=str(data)).read("dev")
    assert dream.size == len(dream.x[0]) == 2040
    urdu = Run("xnli", "bert_base", dev=str(data / "multilingual" / "xnli.en-ur.dev.tsv"), language="ur").read("dev")
    assert urdu.size == 2490


@slow_on("tensorflow", "jax")
def test_a_table_of_one_s_own_from_the_console(start, tmp_path, capsys, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("keras_bert_zoo.finetuning.curve.find_spec", lambda name: None)
    for name in ("train", "dev"):
        write(tmp_path / f"{name}.csv", "message,queue", *(f"{text},{i % 2 * 7}" for i, text in enumerate(SENTENCES)))

    def run(*arguments):
        return cli.main(list(arguments))

    common = ("--train", "train.csv", "--dev", "dev.csv", "--text", "message", "--label", "queue", "--limit", "4")
    options = ("--preset", "start", "--epochs", "1", "--sequence-length", "16", "--batch-size", "4")
    with caplog.at_level(logging.WARNING, "keras_bert_zoo"):
        assert run("finetune", "texts", *common, *options) == 0  # --out defaults to the task's name.
    assert "needs matplotlib" in caplog.text
    assert not Path("texts/curve.png").exists()
    results = json.loads(Path("texts/results.json").read_text())
    shown = capsys.readouterr().out.splitlines()[-2:]
    said = "texts/preset is fine-tuned; texts/results.json has the numbers"
    assert shown == [f"texts accuracy: {results['scores']['accuracy']:.4f}", said]
    assert results["examples"] == {"train": 4, "dev": 8}
    assert run("finetune", "texts", *common, *options) == 0
    assert capsys.readouterr().out.splitlines() == [shown[0], f"{said} (already finished; nothing was trained)"]
    whole = Path("texts/results.json").read_text()
    for other, lacks in (({"task": "texts"}, "scores"), ({"scores": {}}, "task")):
        Path("texts/results.json").write_text(json.dumps(other))
        assert run("finetune", "texts", *common, *options) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.endswith(f"results.json must be a finished run's. Received: a file without `{lacks}`")
    Path("texts/results.json").write_text(whole)
    Path("elsewhere").mkdir()
    write(Path("pretrained/run.json"), '{"data": "data", "preset": "bert_tiny"}')
    write(Path("begun/run.json"), Path("texts/run.json").read_text())
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("evaluate", "--run", str(tmp_path / "texts")) == 0
    assert run("finetune", "--config", "../texts/run.json", "--limit", "4", "--out", "../texts") == 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others").mkdir()
    write(tmp_path / "others" / "dev.csv", "message,queue", "good,0", "bad,7", "fine,0")
    evaluation = ("evaluate", "--run", "texts", "--data", "others", "--out")
    for more, examples in (((), 3), (("--dev", "dev.csv"), 8)):  # These files take precedence over those of the run.
        assert run(*evaluation, "scores", *more) == 0
        assert json.loads(Path("scores/scores.json").read_text())["examples"] == {"dev": examples}
    capsys.readouterr()
    assert json.loads(Path("texts/evaluation/scores.json").read_text())["scores"] == pytest.approx(results["scores"])
    table = ("--preset", "texts/preset", "--text", "message", "--input", "dev.csv")
    assert run("predict", "texts", *table, "--out", "own.jsonl") == 0
    assert lines_of("own.jsonl") == lines_of("texts/predictions/dev.jsonl")
    assert {row["label"] for row in lines_of("own.jsonl")} <= {"0", "7"}
    capsys.readouterr()
    for arguments, words in (
        (("finetune", "--out", "run2"), "TASK must be given"),
        (("finetune", "texts", *common, "--out", "run2"), "--preset must be given"),
        (("finetune", "--config", "texts/run.json", "--seed", "2", "--out", "texts"), "seed=2, before 12345"),
        (("evaluate", "texts", "--preset", "texts/preset"), "--out must be given"),
        (
            ("predict", "sst2", "--preset", "texts/preset", "--input", "dev.csv", "--out", "own.jsonl"),
            "`source` must be a file of the task sst2, .tsv, or lines of text; the task texts reads",
        ),
        (("evaluate", "--run", "gone"), "--run must be the directory of a run. Received: gone"),
        (("evaluate", "--run", "pretrained"), "--run must be the directory of a fine-tuned run. Received: pretrained"),
        (
            ("evaluate", "--run", "begun"),
            "--run must be the directory of a finished run. Received: begun, without preset",
        ),
    ):
        assert run(*arguments) == 2
        assert words in capsys.readouterr().err


def test_a_preset_that_is_named_comes_before_that_of_the_run(tmp_path, monkeypatch):
    scored = []

    def score(run, out, verbose):
        scored.append((run.preset, out))
        return {"task": "mrpc", "scores": {}}

    monkeypatch.setattr("keras_bert_zoo.cli.finetuning.evaluate", score)
    write(tmp_path / "run.json", '{"task": "mrpc", "preset": "bert_base"}')
    (tmp_path / "preset").mkdir()
    for options in ([], ["--preset", "bert_tiny"]):
        assert cli.main(["evaluate", "--run", str(tmp_path), *options]) == 0
    out = str(tmp_path / "evaluation")
    assert scored == [(str(tmp_path / "preset"), out), ("bert_tiny", out)]


def test_an_address_is_no_path(tmp_path, monkeypatch):
    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "keras_bert_zoo.cli.finetuning.evaluate", lambda run, out, verbose: runs.append(run) or {"scores": {}}
    )
    files = ("--preset", "hf://me/mrpc", "--data", "gs://bucket/glue", "--dev", "dev.tsv")
    assert cli.main(["evaluate", "mrpc", *files, "--out", "scores"]) == 0
    assert (runs[0].preset, runs[0].data, runs[0].dev) == ("hf://me/mrpc", "gs://bucket/glue", f"{tmp_path}/dev.tsv")


@slow_on("tensorflow", "jax")
def test_ctrl_c_says_how_a_run_goes_on(start, tmp_path, capsys, monkeypatch):
    """This also holds if the run began from Python, with relative paths; where nothing is kept, nothing is said."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "dev"):
        mrpc(tmp_path, part)
    with broken_off():
        finetune(Run("mrpc", "start", data=".", **{**OPTIONS, "epochs": 2}), "run", verbose=0)

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    settings = [f"--{name.replace('_', '-')}={value}" for name, value in {**OPTIONS, "epochs": 2}.items()]
    command = ["finetune", "mrpc", "--data", ".", "--preset", "start", *settings, "--out", "run"]
    files = ["mrpc", "--data", ".", "--preset", "start"]
    further = "; run the same command again to resume from the last saved state"
    for words, module, end in (
        (command, "finetuning", further),
        (["tune", *files, "--out", "sweep"], "finetuning", further),
        (["pretrain", "--data", ".", "--out", "model"], "pretraining", further),
        (["evaluate", *files, "--out", "scores"], "finetuning", ""),
    ):
        name = words[0]
        with monkeypatch.context() as patched:
            patched.setattr(f"keras_bert_zoo.cli.{module}.{name}", stop)
            assert cli.main(words) == 130
        assert capsys.readouterr().err == f"keras-bert-zoo {name}: stopped{end}\n"
    assert cli.main(command) == 0
    assert "Epoch 2/2" in capsys.readouterr().out
    assert cli.main([*command, "--data", "gone"]) == 2
    assert f"data={str(tmp_path / 'gone')!r}, before '.'" in capsys.readouterr().err


def test_predictions_of_one_language_of_several(start, tmp_path):
    classes = ["entailment", "neutral", "contradiction"]
    classifier = untrained(start, tmp_path / "preset", classes)
    xnli(tmp_path, "dev")
    files = ("--input", str(tmp_path / "xnli.dev.tsv"), "--out", str(tmp_path / "out.jsonl"))
    assert cli.main(["predict", "xnli", "--preset", str(tmp_path / "preset"), "--language", "ur", *files]) == 0
    check_lines(tmp_path / "out.jsonl", classifier, (SENTENCES[1::2], SENTENCES[::-2]))


@slow_on("tensorflow", "jax")
def test_long_work_shows_its_progress_on_the_console_only(start, tmp_path, capsys):
    """A bar of Keras for each kind: one that predicts, one that tags texts, one that finds answers."""
    tagger = kbz.BertTokenClassifier.from_preset(start, class_names=["O", "B-LOC", "I-LOC"])
    tagger.save_to_preset(tmp_path / "conll")
    kbz.BertQuestionAnswerer.from_preset(start, sequence_length=80).save_to_preset(tmp_path / "squad")
    kbz.BertTextClassifier.from_preset(start, class_names=["no", "yes"]).save_to_preset(tmp_path / "texts")
    write(tmp_path / "lines", "a film")
    write(tmp_path / "pairs", "a film\tthe plot is dull")
    write(tmp_path / "dev.csv", "text,label", "good,yes")
    capsys.readouterr()
    for task, lines in (("conll", "lines"), ("squad", "pairs"), ("texts", "lines")):
        preset, out, source = (str(tmp_path / name) for name in (task, "out.jsonl", lines))
        predict(Run(task, preset), out, source)
        assert capsys.readouterr().out == ""
        assert cli.main(["predict", task, "--preset", preset, "--out", out, "--input", source]) == 0
        assert "━━━━" in capsys.readouterr().out
    evaluate(Run("texts", preset, dev=tmp_path / "dev.csv"))
    assert capsys.readouterr().out == ""
    files = ("--dev", str(tmp_path / "dev.csv"), "--out", str(tmp_path / "scores"))
    assert cli.main(["evaluate", "texts", "--preset", preset, *files]) == 0
    assert "━━━━" in capsys.readouterr().out


def test_the_curve_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from keras_bert_zoo.finetuning import curve

    figures, write_figure = [], curve.write_figure

    def keep(figure, path):
        figures.append(figure)
        write_figure(figure, path)

    monkeypatch.setattr(curve, "write_figure", keep)
    write(tmp_path / "log.csv", "epoch,loss,seconds,val_f1", "0,0.5,1,0.8", "1,0.25,1,0.9")
    curve.draw_curve(tmp_path / "log.csv", tmp_path / "curve.png", "f1")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    drawn = {axes.get_ylabel(): [line.get_xydata().tolist() for line in axes.lines] for axes in figures[0].axes}
    assert drawn == {"loss in training": [[[1, 0.5], [2, 0.25]]], "f1 on the dev set": [[[1, 0.8], [2, 0.9]]]}
    write(tmp_path / "long.csv", "epoch,loss,seconds,val_f1", *(f"{epoch},0.5,1,0.8" for epoch in range(40)))
    curve.draw_curve(tmp_path / "long.csv", tmp_path / "curve.png", "f1")
    for axes in (axes for figure in figures for axes in figure.axes):
        assert all(tick == round(tick) for tick in axes.get_xticks())
        assert len(axes.get_xticks()) < 12
    with pytest.raises(KeyError, match="val_accuracy"):
        curve.draw_curve(tmp_path / "log.csv", tmp_path / "curve.png", "accuracy")


@pytest.mark.parametrize("command", ["finetune", "tune", "evaluate", "predict"])
def test_help_shows_an_example(command, capsys):
    with pytest.raises(SystemExit) as leaves:
        cli.main([command, "--help"])
    assert leaves.value.code == 0
    assert f"keras-bert-zoo {command} " in capsys.readouterr().out.split("--out OUT")[-1]


def test_a_score_that_is_no_number_is_null(start, tmp_path, capsys):
    """JSON has no word for it."""
    write(tmp_path / "dev.csv", "text,label", *(f"{text},{i}" for i, text in enumerate(SENTENCES)))
    model = tilted(kbz.BertTextRegressor.from_preset(start), "regressor", [3.25])
    model.save_to_preset(tmp_path / "preset")
    files = ("--dev", str(tmp_path / "dev.csv"), "--out", str(tmp_path / "out"))
    assert cli.main(["evaluate", "numbers", "--preset", str(tmp_path / "preset"), *files]) == 0
    assert capsys.readouterr().out.endswith("numbers pearson: undefined\nnumbers spearman: undefined\n")
    scores = json.loads((tmp_path / "out" / "scores.json").read_text(), parse_constant=pytest.fail)["scores"]
    assert scores == {"pearson": None, "spearman": None}


def test_mnli_is_scored_on_matched(tmp_path):
    write(tmp_path / "MNLI" / "dev_matched.tsv", "sentence1\tsentence2\tgold_label", "a\tb\tneutral")
    assert Run("mnli", "bert_base", data=tmp_path).read("dev").y == ["neutral"]


def test_seconds_are_those_of_the_epoch(monkeypatch):
    module = importlib.import_module("keras_bert_zoo.finetuning.finetune")
    readings = [10.0, 12.5]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: readings.pop(0)))
    callback, logs = module._Seconds(), {}
    callback.on_epoch_begin(0)
    callback.on_epoch_end(0, logs)
    assert logs == {"seconds": 2.5}


def test_lines_are_predicted_block_by_block(start, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_bert_zoo.finetuning.predictions._BLOCK", 3)
    classifier = untrained(start, tmp_path / "preset", ["mäßig", "b"])
    write(tmp_path / "lines", *SENTENCES)
    sizes, predict_all = [], kbz.BertTextClassifier.predict

    def predict_some(model, x, **options):
        sizes.append(len(x))
        return predict_all(model, x, **options)

    with monkeypatch.context() as patched:
        patched.setattr(kbz.BertTextClassifier, "predict", predict_some)
        predict(Run("texts", tmp_path / "preset"), tmp_path / "out.jsonl", tmp_path / "lines")
    assert sizes == [3, 3, 2]
    check_lines(tmp_path / "out.jsonl", classifier, SENTENCES)
    assert (tmp_path / "out.jsonl").read_text("utf-8").count('"mäßig": ') == len(SENTENCES)


def test_a_line_is_refused_before_the_model_is_loaded(tmp_path, monkeypatch):
    """Also one of a later block: predictions for those before it would be lost."""
    monkeypatch.setattr("keras_bert_zoo.finetuning.predictions._BLOCK", 2)
    write(tmp_path / "pairs", *["a film\tbad"] * 4, "good")
    with pytest.raises(
        ValueError, match=r"pairs, line 5 must hold two texts with a tab between them. Received: 'good'"
    ):
        predict(Run("squad", "no preset"), tmp_path / "out.jsonl", tmp_path / "pairs")


def test_a_pipe_is_read_once(start, tmp_path):
    classifier = untrained(start, tmp_path / "preset", ["a", "b"])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("good\nbad\n",), daemon=True)
    writer.start()
    predict(Run("texts", tmp_path / "preset"), tmp_path / "out.jsonl", pipe)
    writer.join()
    check_lines(tmp_path / "out.jsonl", classifier, ["good", "bad"])


@pytest.mark.parametrize("task, name", [("rte", "RTE.tsv"), ("rte", "rte.jsonl"), ("squad2", "squad2")])
def test_where_to_write_is_checked_before_the_model_is_loaded(task, name, tmp_path, monkeypatch):
    """A directory is not made yet: the model may be refused."""
    rte(tmp_path, "dev")
    squad2(tmp_path, "dev")
    source = tmp_path / {"rte": "RTE/dev.tsv", "squad2": "squad/dev-v2.0.json"}[task]
    run = Run(task, "no preset", dev=source)
    write(tmp_path / "file", "kept")

    def closed(**options):
        raise PermissionError(13, "Permission denied")

    def check(folder, words):
        out = tmp_path / folder / name
        words = f"`out` must be where files can be written. Received: out={str(out)!r}, but {tmp_path}{words}"
        with pytest.raises(ValueError, match=f"^{words}$"):
            predict(run, out, source)
        with pytest.raises(ValueError, match=f"^{words}$"):
            evaluate(run, out)

    check("file", "/file is no directory")
    check("file/deeper", "/file is no directory")
    monkeypatch.setattr("tempfile.TemporaryFile", closed)
    check("new/folder", " says: Permission denied")
    assert {path.name for path in tmp_path.iterdir()} == {"RTE", "squad", "file"}
    assert (tmp_path / "file").read_text() == "kept\n"


def test_what_is_read_is_looked_for_before_the_model_is_loaded(tmp_path):
    for source in (tmp_path / "gone.txt", tmp_path):
        with pytest.raises(ValueError, match=f"{source.name} must be a text file"):
            predict(Run("texts", "no preset"), tmp_path / "new" / "out.jsonl", source)
    with pytest.raises(ValueError, match=r'`dtype` must be "mixed_float16" to train'):
        finetune(Run("rte", "no preset", data=tmp_path, dtype="float16"), tmp_path / "new")
    assert not list(tmp_path.iterdir())


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize("task, words", [(rte, r"predictions\[0\]=.*nan.*"), (squad2, "NaN for question 0")])
def test_the_last_update_of_an_epoch_may_diverge(task, words, start, tmp_path):
    for part in ("train", "dev"):
        task(tmp_path, part)
    options = {"epochs": 1, "batch_size": 64, "learning_rate": 1e38, "sequence_length": 80}
    run = Run(task.__name__, start, data=tmp_path, warmup=0.0, **options)
    with pytest.raises(ValueError, match=rf"Received: {words}; there is no state yet"):
        finetune(run, tmp_path / "out", verbose=0)


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize("task", [rte, stsb, swag, squad2])
def test_predictions_are_finite(task, start, tmp_path):
    """JSON has no word for NaN, and the greatest of such logits would be the first class'."""
    name = task.__name__
    options = {"rte": {"class_names": ["entailment", "not_entailment"]}, "squad2": {"sequence_length": 80}}
    model = RECIPES[name].kind.model_class.from_preset(start, **options.get(name, {}))
    bias = model.get_layer(model.head_layers[0]).weights[-1]
    bias.assign(np.full(bias.shape, np.nan))
    model.save_to_preset(tmp_path / "preset")
    task(tmp_path, "dev")
    run = Run(name, tmp_path / "preset", data=tmp_path)
    submission = {"rte": ["RTE.tsv"], "stsb": ["STS-B.tsv"]}.get(name, [])
    for out in ["answers"] if name == "squad2" else ["lines.jsonl", *submission]:
        with pytest.raises(ValueError, match=r"must be finite\. Received: .*NaN or infinity"):
            predict(run, tmp_path / "out" / out, run.path("dev"))
    assert not [path for path in tmp_path.glob("out/**/*") if path.is_file()]


@slow_on("tensorflow", "jax")
@pytest.mark.parametrize("task", [conll, squad])
def test_scores_and_tags_are_of_numbers(task, start, tmp_path):
    """The greatest of such logits would be the first tag, or a span like any other."""
    name = task.__name__
    options = {"class_names": ["O", "B-LOC", "I-LOC"]} if name == "conll" else {"sequence_length": 80}
    model = RECIPES[name].kind.model_class.from_preset(start, **options)
    bias = model.get_layer(model.head_layers[0]).weights[-1]
    bias.assign(np.full(bias.shape, np.nan))
    model.save_to_preset(tmp_path / "preset")
    task(tmp_path, "dev")
    write(tmp_path / "lines", "a film")
    run = Run(name, tmp_path / "preset", data=tmp_path)
    calls = [lambda: evaluate(run)]
    if name == "conll":
        x, y = read_conll(run.path("dev")).by_document()
        calls += [partial(predict, run, tmp_path / "out.jsonl", file) for file in (run.path("dev"), tmp_path / "lines")]
        calls += [lambda: model.evaluate_entities(x, y)]
    for call in calls:
        with pytest.raises(NotANumberError, match="Received: NaN"):
            call()
    assert not (tmp_path / "out.jsonl").exists()


@slow_on("tensorflow", "jax")
def test_a_preset_of_the_other_squad(start, tmp_path):
    """In 1.1 each question has an answer, whatever the threshold; 2.0 begins with a threshold of 0."""
    squad2(tmp_path, "dev")
    write(tmp_path / "pairs", "a film\tthe plot is dull", "good\tso warm")
    answerer = kbz.BertQuestionAnswerer.from_preset(start, sequence_length=80)
    answerer.save_to_preset(tmp_path / "one")
    answerer.null_threshold = -1e6
    answerer.save_to_preset(tmp_path / "two")
    for task, has_answer in (("squad2", False), ("squad", True)):
        predict(Run(task, tmp_path / "two"), tmp_path / "out.jsonl", tmp_path / "pairs")
        assert [bool(row["answer"]) for row in lines_of(tmp_path / "out.jsonl")] == [has_answer] * 2
    scores = evaluate(Run("squad2", tmp_path / "two", data=tmp_path))["scores"]
    assert scores["f1"] == 50.0  # Half of the questions have no answer, as it says of each.
    results = evaluate(Run("squad2", tmp_path / "one", data=tmp_path), tmp_path / "scores")
    check_scores(results, "squad2", tmp_path, tmp_path / "scores" / "predictions")
    said, odds = (
        json.loads((tmp_path / "scores" / "predictions" / f"{name}.json").read_text())
        for name in ("predictions", "null_odds")
    )
    assert {name: bool(text) for name, text in said.items()} == {name: odd <= 0 for name, odd in odds.items()}


def test_the_label_is_that_of_the_greatest_logit():
    """This holds even if the probabilities round to the same number: submissions are made of logits."""
    model, logits = SimpleNamespace(class_names=["a", "b"]), np.array([[0.0, 1e-9]], "float32")
    (said,) = RECIPES["texts"].kind.records(model, Data(["x"], None, 1), logits)
    assert said == {"label": "b", "probabilities": {"a": 0.5, "b": 0.5}}


def test_logits_come_in_the_order_of_the_data():
    """Three classes have different orders there and back; classes of one's own tables are in alphabetical order."""
    model = SimpleNamespace(class_names=["c", "a", "b"], predict=lambda x, verbose: np.array([[0.3, 0.1, 0.2]]))
    logits = RECIPES["mnli"].kind.predict(model, Data(["x"], None, 1, ["a", "b", "c"]))
    assert logits.tolist() == [[0.1, 0.2, 0.3]]
    model.class_names, model.num_classes = None, 3  # MNLI's numbers there are not ours.
    with pytest.raises(ValueError, match=r"have the names .* class_names=\[.*Received: one with \['0', '1', '2'\]"):
        RECIPES["mnli"].kind.predict(model, Data(["x"], None, 1, ["a", "b", "c"]))
    assert RECIPES["mnli"].kind.predict(model, Data(["x"], None, 1)).tolist() == [[0.3, 0.1, 0.2]]  # Lines of texts.
    model.num_classes, model.predict = 2, lambda x, verbose: np.array([[0.3, 0.1]])
    assert RECIPES["rte"].kind.predict(model, Data(["x"], None, 1, ["b", "a"])).tolist() == [[0.3, 0.1]]
    assert RECIPES["texts"].kind.head(Data(["x", "y"], ["z", "b"], 2)) == {"class_names": ["b", "z"]}

"""The script of `make quickstart`: what it says about unexpected files and presets, and its default run."""

import runpy
from pathlib import Path

import pytest

main = runpy.run_path(str(Path(__file__).parents[1] / "notebooks" / "quickstart.py"))["main"]


def write(folder, **parts):
    for part, lines in parts.items():
        (folder / f"{part}.tsv").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    "parts, words",
    [
        ({}, "train.tsv must be a text file (No such file or directory)"),
        ({"train": ["sentence\tlabel", "fine\t1"]}, "dev.tsv must be a text file (No such file or directory)"),
        (
            {"train": ["text\tlabel", "fine\t1"]},
            "train.tsv: the columns must include ['sentence', 'label']. Received: ['text', 'label']",
        ),
        ({"train": ["sentence\tlabel", "fine"]}, "train.tsv, line 2: a row must have 2 fields. Received: 1"),
        (
            {"train": ["sentence\tlabel", "fine\t1"], "dev": ["sentence\tlabel"]},
            "dev.tsv must hold sentences. Received: none",
        ),
    ],
)
def test_a_folder_without_the_data(tmp_path, parts, words):
    write(tmp_path, **parts)
    with pytest.raises(SystemExit) as stop:
        main(["--data", str(tmp_path)])
    assert words in stop.value.code
    assert "\n" not in stop.value.code


def test_no_such_preset(capsys):
    with pytest.raises(SystemExit, match=r"^quickstart: `preset` must be one of .* Received: preset='bert_bas'$"):
        main(["--preset", "bert_bas"])
    assert capsys.readouterr().out.startswith("Data: 1000 sentences to train on, 200 to test on, classes neg")


def test_labels_are_named_as_in_sst(tmp_path, capsys):
    lines = ["sentence\tlabel", 'a "fine film\t1', "bad\t0", "so so\t0"]
    write(tmp_path, train=lines, dev=lines)
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path), "--limit", "2", "--preset", "bert_bas"])
    assert capsys.readouterr().out == "Data: 2 sentences to train on, 3 to test on, classes negative, positive\n"


@pytest.mark.slow
def test_the_default_run(capsys):
    main([])
    out = capsys.readouterr().out
    assert "Model: bert_mini_novels; fresh: classifier/kernel, classifier/bias" in out
    assert float(out.split("Dev accuracy ")[1].split()[0]) > 0.85
    assert out.splitlines()[-3].split(maxsplit=2)[1:] == ["positive", "a warm and charming film"]

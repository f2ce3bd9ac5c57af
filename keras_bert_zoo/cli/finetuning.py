"""The commands for fine-tuning: `finetune`, `tune`, `evaluate`, `predict`."""

import argparse
from pathlib import Path
from typing import Any

from keras_bert_zoo.cli.commands import FINISHED, add_command, add_options, configured, place
from keras_bert_zoo.finetuning import RECIPES, Run, evaluate, finetune, predict
from keras_bert_zoo.json_files import read_json
from keras_bert_zoo.tuning import tune
from keras_bert_zoo.tuning.sweep import GRIDS, SEARCHES

_FILES = ("train", "dev")
_PATHS = ("data", *_FILES, "preset")
# Options that take several values in `tune`.
_SWEPT = (
    ("preset", str, "what to start from"),
    ("learning-rate", float, "the peak (the grid's)"),
    ("batch-size", int, "examples per update (the grid's)"),
    ("epochs", int, "passes over the training data (the grid's)"),
    ("warmup", float, "share of the updates spent warming up (0.1)"),
    ("dropout", float, "of sub-layers, attention and head (the preset's)"),
)

_FINETUNE = """\
BERT base on MRPC by the paper's recipe; after an interruption, the same command resumes:

  keras-bert-zoo finetune mrpc --data glue_data --preset bert_base --out mrpc

SQuAD 2.0 in half precision; another learning rate; files of other names:

  keras-bert-zoo finetune squad2 --data squad --preset bert_base --dtype mixed_bfloat16 --out squad2
  keras-bert-zoo finetune cola --data glue_data --preset bert_base --learning-rate 5e-5 --out cola5e-5
  keras-bert-zoo finetune conll --train ner/train.bio --dev ner/dev.bio --preset bert_base_cased --out ner

A table of your own, with a header; several models of one configuration:

  keras-bert-zoo finetune texts --train train.csv --dev dev.csv --text message --label queue --preset bert_base --out 1
  keras-bert-zoo finetune --config 1/run.json --seed 2 --out 2
"""
_TUNE = """\
The paper's grid on MRPC, each point with five seeds; after an interruption, the same command resumes:

  keras-bert-zoo tune mrpc --data glue_data --preset bert_base --restarts 5 --out sweep

A small model's wider grid; some random points of it; Hyperband up to 4 epochs:

  keras-bert-zoo tune sst2 --data glue_data --preset bert_tiny --grid small --out all
  keras-bert-zoo tune sst2 --data glue_data --preset bert_tiny --grid small --search random --trials 8 --out some
  keras-bert-zoo tune sst2 --data glue_data --preset bert_tiny --grid small --search hyperband --out bands

A grid of your own:

  keras-bert-zoo tune rte --data glue_data --preset bert_base bert_large --learning-rate 1e-5 2e-5 --epochs 5 --out rte

Several processes can share a sweep: run the same command in each, with KERASTUNER_ORACLE_IP and _PORT set, and
KERASTUNER_TUNER_ID=chief in one, which trains nothing, and another name in each of the others.
"""
_EVALUATE = """\
A run on the other dev set of MNLI:

  keras-bert-zoo evaluate --run mnli --dev glue_data/MNLI/dev_mismatched.tsv

Any preset that has the head of the task:

  keras-bert-zoo evaluate squad --preset path/to/bert --data squad --out scores
"""
_PREDICT = """\
A submission to GLUE; the official files of SQuAD, in a directory:

  keras-bert-zoo predict rte --preset rte/preset --input glue_data/RTE/test.tsv --out submission/RTE.tsv
  keras-bert-zoo predict squad2 --preset squad2/preset --input squad/dev-v2.0.json --out predictions

Lines of text to JSON lines: entities, or classes of pairs with a tab between:

  keras-bert-zoo predict conll --preset ner/preset --out entities.jsonl < texts.txt
  printf 'A man sleeps.\\tNobody is awake.\\n' | keras-bert-zoo predict mnli --preset mnli/preset --out classes.jsonl
"""


def add_commands(commands: Any) -> None:
    for add in (_add_finetune, _add_tune, _add_evaluate, _add_predict):
        add(commands)


def _add_task(parser: argparse.ArgumentParser, optional: bool) -> None:
    nargs: Any = "?" if optional else None
    parser.add_argument("task", nargs=nargs, metavar="TASK", help=", ".join(RECIPES))


def _add_files(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        ("data", str, "directory of the official files, or of the task's folder"),
        ("dev", str, "the dev file, if it has another name"),
        ("language", str, "of XNLI (trains on the English file and scores all languages)"),
    )
    _add_columns(parser)
    add_options(parser, ("label", str, "column of the label in your own tables (label)"))


def _add_columns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", nargs="+", metavar="COLUMN", help="of your own tables, two for pairs (text)")


def _add_training(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        ("train", str, "the training file, if it has another name"),
        ("sequence-length", int, "longest input in tokens (the recipe's)"),
        ("seed", int, "random seed (12345)"),
        ("dtype", str, "precision policy (float32)"),
        ("limit", int, "train on only this many examples, the first of the file"),
    )


# --- finetune


def _add_finetune(commands: Any) -> None:
    summary = "Fine-tune, or resume an interrupted run."
    parser = add_command(commands, "finetune", summary, _FINETUNE, _finetune, resumes=True)
    _add_task(parser, optional=True)
    parser.add_argument("--config", help="the run.json of another run, to start from its configuration")
    _add_files(parser)
    _add_training(parser)
    add_options(
        parser,
        ("preset", str, "what to start from: a name, a directory, hf://org/name"),
        ("learning-rate", float, "the peak (the recipe's)"),
        ("batch-size", int, "examples per update (the recipe's)"),
        ("epochs", int, "passes over the training data (the recipe's)"),
        ("warmup", float, "share of the updates spent warming up (0.1)"),
        ("strategy", str, "mirrored, tpu; JAX: data_parallel, model_parallel[:devices] (none)"),
    )
    parser.add_argument("--out", help="directory of the run (TASK)")


def _finetune(options: argparse.Namespace) -> None:
    config = _config(options)
    out = options.out or str(config["task"])
    run = Run(**place(config, _PATHS, Path(out) / "run.json"))
    end = FINISHED if (Path(out) / "results.json").is_file() else ""
    _report(finetune(run, out, verbose=1))
    print(f"{out}/preset is fine-tuned; {out}/results.json has the numbers{end}")


# --- tune


def _add_tune(commands: Any) -> None:
    summary = "Search for the best hyperparameters, or resume an interrupted search."
    parser = add_command(commands, "tune", summary, _TUNE, _tune, resumes=True)
    _add_task(parser, optional=False)
    _add_files(parser)
    _add_training(parser)
    parser.add_argument("--grid", choices=GRIDS, default="paper", help="the values to try (%(default)s)")
    for name, kind, words in _SWEPT:
        parser.add_argument(f"--{name}", type=kind, nargs="+", help=f"{words}; several are searched")
    parser.add_argument("--restarts", type=int, default=1, help="trainings per point, each with its own seed (1)")
    parser.add_argument("--search", choices=SEARCHES, default="grid", help="how to search (%(default)s)")
    parser.add_argument("--trials", type=int, help="how many points to try (all of a grid, 10 of another search)")
    parser.add_argument("--out", required=True, help="directory of the sweep")


def _tune(options: argparse.Namespace) -> None:
    choices = {}
    for option, _, _ in _SWEPT:
        name = option.replace("-", "_")
        values = getattr(options, name)
        if values is not None:
            choices[name] = values if len(values) > 1 else values[0]
        setattr(options, name, values[0] if values and name == "preset" else None)
    searching = {name: getattr(options, name) for name in ("grid", "search", "trials", "restarts")}
    end = FINISHED if (Path(options.out) / "results.json").is_file() else ""
    results = tune(Run(**_config(options)), options.out, verbose=1, **searching, **choices)
    if results is not None:
        print((Path(options.out) / "table.md").read_text(encoding="utf-8"), end="")
        print(f"{options.out}/preset is the best trial's; {options.out}/results.json has the numbers{end}")


# --- evaluate


def _add_evaluate(commands: Any) -> None:
    parser = add_command(commands, "evaluate", "Score a fine-tuned preset on a dev set.", _EVALUATE, _evaluate)
    _add_task(parser, optional=True)
    parser.add_argument(
        "--run", metavar="RUN", dest="finished", help="directory of a run, for its task, preset and files"
    )
    add_options(parser, ("preset", str, "what to score"))
    _add_files(parser)
    add_options(parser, ("dtype", str, "precision policy (float32)"))
    parser.add_argument("--out", help="directory for scores.json and predictions (RUN/evaluation)")


def _evaluate(options: argparse.Namespace) -> None:
    if options.finished is not None:
        options.config = str(Path(options.finished) / "run.json")
        if not Path(options.config).is_file():
            raise ValueError(f"--run must be the directory of a run. Received: {options.finished}")
        if "task" not in read_json(Path(options.config)):
            raise ValueError(f"--run must be the directory of a fine-tuned run. Received: {options.finished}")
        preset = Path(options.finished) / "preset"
        if options.preset is None and not preset.is_dir():
            raise ValueError(
                f"--run must be the directory of a finished run. Received: {options.finished}, without preset"
            )
        options.preset = options.preset or str(preset)
        options.out = options.out or str(Path(options.finished) / "evaluation")
    if options.out is None:
        raise ValueError("--out must be given, unless --run is. Received: neither")
    _report(evaluate(_run(options), options.out, verbose=1))


# --- predict


def _add_predict(commands: Any) -> None:
    parser = add_command(commands, "predict", "Write the predictions of a fine-tuned preset.", _PREDICT, _predict)
    _add_task(parser, optional=False)
    parser.add_argument("--preset", required=True, help="a fine-tuned preset")
    parser.add_argument("--input", help="a file of the task, or lines of text; standard input unless given")
    _add_columns(parser)
    add_options(
        parser,
        ("language", str, "of XNLI, if a file has several"),
        ("dtype", str, "precision policy (float32)"),
    )
    parser.add_argument(
        "--out", required=True, help="JSON lines (.jsonl), or GLUE's submission (.tsv), or SQuAD's directory"
    )


def _predict(options: argparse.Namespace) -> None:
    predict(_run(options), options.out, options.input, verbose=1)


# --- shared


def _run(options: argparse.Namespace) -> Run:
    return Run(**place(_config(options), _PATHS))


def _config(options: argparse.Namespace) -> dict[str, Any]:
    config = configured(Run, options)
    if getattr(options, "data", None) is not None:  # It replaces the files that another run names.
        config = {name: value for name, value in config.items() if name not in _FILES or getattr(options, name, None)}
    for name in ("task", "preset"):
        if name not in config:
            raise ValueError(f"{'TASK' if name == 'task' else '--preset'} must be given. Received: none")
    return config


def _report(results: dict[str, Any]) -> None:
    for name, value in results["scores"].items():
        print(f"{results['task']} {name}: {'undefined' if value is None else f'{value:.4f}'}")

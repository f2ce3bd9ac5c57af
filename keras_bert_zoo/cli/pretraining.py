"""The commands for pre-training: `vocab`, `prepare`, `records`, `pretrain`."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from keras_bert_zoo.cli.commands import FINISHED, add_command, add_options, configured, json_object, place
from keras_bert_zoo.files import check_out
from keras_bert_zoo.json_files import read_json
from keras_bert_zoo.pretraining import Masking, Run, prepare, pretrain, write_records
from keras_bert_zoo.pretraining.corpus import LAYOUTS
from keras_bert_zoo.pretraining.description import DESCRIPTION
from keras_bert_zoo.text import BertTokenizer, learn_vocabulary, read_lines, write_vocabulary

_VOCAB = """\
Learn an uncased vocabulary of 8,000 tokens from text files:

  keras-bert-zoo vocab --size 8000 --out vocab.txt books/*.txt

A cased one of several languages together, the small ones weighted up:

  keras-bert-zoo vocab --size 110000 --cased --out shared.txt --language en en/*.txt --language is is/*.txt
"""
_PREPARE = """\
Make a data set of next-sentence pairs from books, five passes over the text, masks drawn anew in training:

  keras-bert-zoo prepare --vocab vocab.txt --layout prose --duplicates 5 --out data books/*.txt

The same with whole words masked, fixed in the data set, at length 512:

  keras-bert-zoo prepare --vocab vocab.txt --layout prose --sequence-length 512 --fix-masks \\
      --masking '{"whole_words": true}' --out long books/*.txt

Several languages, each in its smoothed share:

  keras-bert-zoo prepare --vocab shared.txt --cased --out both --language en en/*.txt --language is is/*.txt

On a cluster, with the options of the Apache Beam pipeline that it runs as:

  keras-bert-zoo prepare --vocab vocab.txt --out data books/*.txt \\
      --beam="--runner=FlinkRunner --flink_master=host:8081 --temp_location=gs://bucket/temp"
"""
_RECORDS = """\
Write a data set that was prepared with --fix-masks as TFRecords, which google-research/bert and others read:

  keras-bert-zoo records --data long --out records

In a bucket, if TensorFlow can write there:

  keras-bert-zoo records --data long --out gs://bucket/records
"""
_PRETRAIN = """\
Pre-train BERT tiny on it; after an interruption, the same command resumes:

  keras-bert-zoo pretrain --data data --preset bert_tiny --steps 20000 --batch-size 128 --out run

Then at length 512, from the weights of the first run:

  keras-bert-zoo pretrain --data long --preset run/preset --steps 2000 --batch-size 32 --out run512

Left to right, each token from those before it, in four layers; and with every chosen token masked:

  keras-bert-zoo pretrain --data data --architecture '{"causal": true, "num_layers": 4}' --out left_to_right
  keras-bert-zoo pretrain --data data --masking '{"mask": 1.0, "random": 0.0}' --out all_masked

On every GPU of this machine, a batch split among them:

  keras-bert-zoo pretrain --data data --preset bert_base --batch-size 256 --strategy mirrored --out base

From TFRecords, those of google-research/bert's create_pretraining_data.py for one, with TensorFlow:

  keras-bert-zoo pretrain --data "records/*.tfrecord" --vocab vocab.txt --preset bert_base --out base

A run writes its configuration, from which another can be started:

  keras-bert-zoo pretrain --config run/run.json --out again
"""


def add_commands(commands: Any) -> None:
    for add in (_add_vocab, _add_prepare, _add_records, _add_pretrain):
        add(commands)


def _add_texts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", help="UTF-8 text files")
    parser.add_argument(
        "--language",
        nargs="+",
        action="append",
        metavar=("NAME", "FILE"),
        help="a language and its files, in place of files alone; once for each of several languages",
    )


def _texts(options: argparse.Namespace) -> Any:
    """Return the files, or a dict from each language to its files."""
    if bool(options.files) == bool(options.language):
        raise ValueError(
            "files or --language must be given, and not both. Received: " + ("both" if options.files else "neither")
        )
    languages: dict[str, list[str]] = {}
    for name, *files in options.language or ():
        if not files:
            raise ValueError(f"--language must be a name and files. Received: {name}")
        languages.setdefault(name, []).extend(files)
    return options.files or languages


# --- vocab


def _add_vocab(commands: Any) -> None:
    parser = add_command(commands, "vocab", "Learn a WordPiece vocabulary from text files.", _VOCAB, _vocab)
    _add_texts(parser)
    parser.add_argument("--size", type=int, required=True, help="number of tokens")
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    parser.add_argument("--out", required=True, help="the vocab.txt to write")


def _vocab(options: argparse.Namespace) -> None:
    out = Path(options.out).resolve()
    if out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"--out must be a file in an existing directory. Received: {options.out}")
    if out.exists() and not _is_vocabulary(out):
        raise ValueError(f"--out must be new, or a vocabulary to be replaced. Received: {options.out}")
    check_out(options.out, out.parent)
    files = _texts(options)
    texts = {name: read_lines(each) for name, each in files.items()} if isinstance(files, dict) else read_lines(files)
    vocabulary = learn_vocabulary(texts, options.size, lowercase=not options.cased)
    write_vocabulary(options.out, vocabulary)
    print(f"{options.out}: {len(vocabulary):,} tokens")


def _is_vocabulary(path: Path) -> bool:
    """Check the first line, because `--out *.txt` would name the first of the texts."""
    with path.open("rb") as file:
        return file.readline(16).rstrip() == b"[PAD]"


# --- prepare


def _add_prepare(commands: Any) -> None:
    parser = add_command(commands, "prepare", "Make a data set of examples from text files.", _PREPARE, _prepare)
    _add_texts(parser)
    parser.add_argument("--vocab", required=True, help="the vocab.txt")
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default=LAYOUTS[0],
        help="one sentence per line, blank lines between documents (the default); or prose, one document per file",
    )
    parser.add_argument("--sequence-length", type=int, default=128, help="longest example in tokens (%(default)s)")
    parser.add_argument("--duplicates", type=int, default=1, help="passes over the text (%(default)s)")
    parser.add_argument("--no-pairs", action="store_true", help="pack sentences, without next-sentence pairs")
    parser.add_argument("--fix-masks", action="store_true", help="draw masks now, not anew in each epoch of training")
    parser.add_argument(
        "--masking",
        type=json_object,
        default={},
        metavar="JSON",
        help="fields of Masking in place of the paper's: rate, mask, random, whole_words, max_predictions",
    )
    parser.add_argument("--short-rate", type=float, default=0.1, help="share of short examples (%(default)s)")
    parser.add_argument("--seed", type=int, default=12345, help="random seed (%(default)s)")
    parser.add_argument("--workers", type=int, help="processes; one per core unless given, none for little text")
    parser.add_argument("--strict", action="store_true", help="stop at a file, line or document that cannot be read")
    parser.add_argument("--beam", metavar="OPTIONS", help="run as an Apache Beam pipeline with these options")
    parser.add_argument("--out", required=True, help="the directory to make")


def _prepare(options: argparse.Namespace) -> None:
    Masking.check_fields(options.masking)
    report = prepare(
        _texts(options),
        options.out,
        BertTokenizer(options.vocab, lowercase=not options.cased),
        layout=options.layout,
        sequence_length=options.sequence_length,
        masking=Masking.for_length(options.sequence_length, **options.masking),
        fix_masks=options.fix_masks,
        next_sentence=not options.no_pairs,
        duplicates=options.duplicates,
        short_rate=options.short_rate,
        seed=options.seed,
        strict=options.strict,
        workers=options.workers,
        beam=None if options.beam is None else shlex.split(options.beam),
    )
    taken = f"{report.files:,} files, {report.documents:,} documents, {report.sentences:,} sentences"
    print(f"{options.out}: {taken}; skipped: {report.skips:,}")
    about = read_json(Path(options.out) / DESCRIPTION)
    for name, made in about.get("languages", {}).items():
        share = made["examples"] / about["examples"]
        print(f"{name}: {share:.1%} of the examples, {made['passes']:.3g} of its text for each pass")
    for words in report.skipped:
        print(f"skipped: {words}")
    if report.skips > len(report.skipped):
        print(f"skipped: {report.skips - len(report.skipped):,} more")


# --- records


def _add_records(commands: Any) -> None:
    parser = add_command(commands, "records", "Write a data set as TFRecords; needs TensorFlow.", _RECORDS, _records)
    parser.add_argument("--data", required=True, help="data set made by `prepare --fix-masks`")
    parser.add_argument("--out", required=True, help="the directory to make; gs:// if TensorFlow can write there")


def _records(options: argparse.Namespace) -> None:
    print(f"{options.out}: {write_records(options.data, options.out):,} examples")


# --- pretrain


def _add_pretrain(commands: Any) -> None:
    summary = "Pre-train, or resume an interrupted run."
    parser = add_command(commands, "pretrain", summary, _PRETRAIN, _pretrain, resumes=True)
    parser.add_argument("--config", help="the run.json of another run, to start from its configuration")
    add_options(
        parser,
        ("data", str, "data set made by `prepare`, or with --vocab a quoted pattern of TFRecord files"),
        ("preset", str, "name of an architecture, or directory of weights to start from (bert_tiny)"),
        ("architecture", json_object, "JSON: arguments of BertBackbone in place of the named preset's"),
        ("masking", json_object, "JSON: fields of Masking in place of the data set's"),
        ("steps", int, "updates in all (10000)"),
        ("batch-size", int, "examples per update (256)"),
        ("gradient-accumulation-steps", int, "parts of an update, to save memory; divides the batch size (1)"),
        ("learning-rate", float, "the peak (1e-4)"),
        ("warmup", float, "share of the steps spent warming up (0.01)"),
        ("optimizer", str, "adamw or lamb (adamw)"),
        ("steps-per-execution", int, "batches between two returns to Python, on an accelerator (1)"),
        (
            "save-every",
            int,
            "updates between two states on disk; divides the steps (their largest divisor of 50 to 500)",
        ),
        ("seed", int, "random seed (12345)"),
        ("dtype", str, "precision policy (float32)"),
        ("dropout", float, "while pre-training; the preset keeps its own (the preset's)"),
        ("validation", str, "data set to evaluate each time a state is saved"),
        ("strategy", str, "mirrored, multi_worker, tpu[:name]; JAX: data_parallel, model_parallel[:devices] (none)"),
        ("vocab", str, "the vocab.txt of TFRecords"),
    )
    parser.add_argument("--cased", action="store_true", default=None, help="that vocabulary keeps case and accents")
    parser.add_argument("--jit-compile", action="store_true", default=None, help="for PyTorch on a GPU: faster steps")
    parser.add_argument("--out", required=True, help="directory of the run")


def _pretrain(options: argparse.Namespace) -> None:
    config = configured(Run, options)
    if "data" not in config:
        raise ValueError("--data or --config must be given. Received: neither")
    if options.steps is not None and options.save_every is None:
        config.pop("save_every", None)  # The file's value belongs to its number of steps.
    config = place(config, ("data", "preset", "validation", "vocab"), Path(options.out) / "run.json")
    model = pretrain(Run(**config), options.out, verbose=1)
    end = "" if model.history.epoch else FINISHED
    print(f"{options.out}/preset: {model.count_params():,} weights{end}")

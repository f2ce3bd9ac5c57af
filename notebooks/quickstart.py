"""Fine-tune and evaluate a text classifier; `make quickstart` runs this.

    python notebooks/quickstart.py                                  # the preset that ships, on the sample beside this
    python notebooks/quickstart.py --preset DIR                     # another one
    python notebooks/quickstart.py --preset DIR --data SST-2        # on a folder with train.tsv and dev.tsv

A data folder holds `train.tsv` and `dev.tsv` as GLUE's SST-2 has them: a header, then sentence, tab, label.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import keras

import keras_bert_zoo as kbz

SAMPLE = Path(__file__).with_name("reviews.tsv")
TRY = ["a warm and charming film", "the food was cold and the waiter was rude", "not worth the money"]
OWN = "bert_mini_novels"  # Comes with the package. As small as it is, it wants a larger rate than BERT base.
NAMES = {"0": "negative", "1": "positive"}  # SST-2's labels


def read_tsv(path: Path, label: str = "label") -> list[tuple[str, str]]:
    """Sentences and their labels, or another column's values."""
    columns = kbz.data.read_texts(path, text="sentence", label=label, numbers=False)
    return list(zip(columns.x, columns.y or [], strict=True))


def read_data(folder: Path | None, limit: int) -> dict[str, tuple[list[str], list[str]]]:
    """Sentences and labels of `train` and `dev`."""
    if folder is None:
        rows = list(zip(read_tsv(SAMPLE), read_tsv(SAMPLE, "split"), strict=True))
        parts = {part: [row for row, (_, split) in rows if split == part] for part in ("train", "dev")}
    else:
        parts = {part: read_tsv(folder / f"{part}.tsv") for part in ("train", "dev")}
        if limit:
            parts["train"] = parts["train"][:limit]
    for part, rows in parts.items():
        if not rows:
            raise ValueError(f"{part}.tsv must hold sentences. Received: none")
    return {
        part: ([sentence for sentence, _ in rows], [NAMES.get(label, label) for _, label in rows])
        for part, rows in parts.items()
    }


def listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, help="folder with train.tsv and dev.tsv; the sample beside this by default"
    )
    parser.add_argument("--preset", default=OWN, help="name, directory or hf:// address (%(default)s)")
    parser.add_argument("--limit", type=int, default=1600, help="first so many sentences of --data; 0 for all")
    arguments = parser.parse_args(argv)
    try:
        run(arguments)
    except (ValueError, OSError) as error:  # A file or a preset that is not as expected; the message names it.
        sys.exit(f"quickstart: {error}")


def run(arguments: argparse.Namespace) -> None:
    """Fine-tune, evaluate and classify, and print how it goes."""
    keras.utils.set_random_seed(0)
    data = read_data(arguments.data, arguments.limit)
    (texts, labels), (dev_texts, dev_labels) = data["train"], data["dev"]
    names = sorted(set(labels))
    print(f"Data: {len(texts)} sentences to train on, {len(dev_texts)} to test on, classes {', '.join(names)}")
    classifier = kbz.BertTextClassifier.from_preset(arguments.preset, class_names=names, sequence_length=128)
    report = classifier.load_report
    print(f"Model: {arguments.preset}; fresh: {listed(report.fresh)}; not used: {listed(report.unused)}")
    print(f"{classifier.count_params():,} parameters on the {keras.backend.backend()} backend\n")

    epochs, rate = (3, 3e-4) if arguments.preset == OWN else (1, 5e-5)
    classifier.compile(optimizer=kbz.AdamW(kbz.WarmupPolynomialDecay(rate)))
    start = time.perf_counter()
    classifier.fit(texts, labels, epochs=epochs, validation_data=(dev_texts, dev_labels))
    scores = classifier.evaluate(dev_texts, dev_labels, verbose=0, return_dict=True)
    print(f"\nDev accuracy {scores['accuracy']:.3f} after {time.perf_counter() - start:.0f} s\n")
    for text, ranked in zip(TRY, classifier.classify(TRY), strict=True):
        name, probability = ranked[0]
        print(f"{probability:4.0%} {name:9} {text}")


if __name__ == "__main__":
    main()

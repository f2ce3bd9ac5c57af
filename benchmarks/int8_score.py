"""What int8 costs a classifier of SST-2, and what it saves: dev accuracy, seconds, bytes.

    KBZ_DATA=DATA KERAS_BACKEND=torch python benchmarks/int8_score.py --preset PRESET

`PRESET` is any preset, `DATA` holds `glue/SST-2`. Fine-tunes on the first `--sentences` of the training set, one epoch,
batch 32, peak 5e-5, 10 % warm-up; then the same weights in float32 and after `quantize("int8")`. Seconds are the median
of `--runs` predictions of the dev set from raw strings, after one to warm up. Both models are loaded again from their
`.keras` files, and must give the very same logits. Results: `results/int8_score_<backend>.json` and `.md`.
"""

import argparse
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from reports import about, describe, write

import keras_bert_zoo as kbz

RESULTS = Path(__file__).parent / "results"


def measure(model: Any, texts: list[str], labels: list[int], file: Path, runs: int) -> dict[str, Any]:
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        logits = model.predict(texts, verbose=0)
        seconds.append(time.perf_counter() - start)
    model.save(file)
    loaded = keras.models.load_model(file)
    assert np.array_equal(loaded.predict(texts, verbose=0), logits), "the file gives other logits"
    return {
        "dev_accuracy": round(float((logits.argmax(-1) == np.array(labels)).mean()), 4),
        "seconds": round(statistics.median(seconds[1:]), 2),
        "file_megabytes": round(file.stat().st_size / 1e6, 1),
        "logits": logits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--sentences", type=int, default=6400)
    parser.add_argument("--dev", type=int, help="only the first of the dev set")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    facts = about("int8_score.py", arguments)

    folder = Path(os.environ["KBZ_DATA"]) / "glue" / "SST-2"
    train = kbz.data.read_glue("sst2", folder / "train.tsv")
    dev = kbz.data.read_glue("sst2", folder / "dev.tsv")
    texts, labels = dev.x[: arguments.dev], dev.y[: arguments.dev]
    keras.utils.set_random_seed(arguments.seed)
    model = kbz.BertTextClassifier.from_preset(arguments.preset, num_classes=2, sequence_length=128)
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(arguments.learning_rate)))
    model.fit(train.x[: arguments.sentences], train.y[: arguments.sentences], batch_size=32, epochs=1, verbose=2)
    model.compile()  # Without the optimizer's moments, which would be two thirds of the file.

    results = {}
    with tempfile.TemporaryDirectory() as files:
        results["float32"] = measure(model, texts, labels, Path(files) / "float32.keras", arguments.runs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Layer .* does not have a `quantize` method")
            model.quantize("int8")
        results["int8"] = measure(model, texts, labels, Path(files) / "int8.keras", arguments.runs)
    float_logits, int8_logits = (result.pop("logits") for result in results.values())
    record = {
        "about": facts,
        "preset": Path(arguments.preset).name,
        "backend": keras.backend.backend(),
        "sentences": arguments.sentences,
        "dev_sentences": len(texts),
        "learning_rate": arguments.learning_rate,
        "seed": arguments.seed,
        **results,
        "same_class": round(float((float_logits.argmax(-1) == int8_logits.argmax(-1)).mean()), 4),
        "largest_difference_of_logits": round(float(np.abs(float_logits - int8_logits).max()), 4),
    }
    rows = "\n".join(
        f"| {name} | {result['dev_accuracy']:.4f} | {result['seconds']:.2f} | {result['file_megabytes']:.1f} |"
        for name, result in results.items()
    )
    described = "\n".join(describe(facts))
    text = f"""# int8 beside float32 on SST-2

{described}

{record["preset"]} after {arguments.sentences:,} sentences, seed {arguments.seed}, on {record["backend"]}; {len(texts)}
dev sentences, of which {record["same_class"]:.2%} keep their class. Logits differ by at
most {record["largest_difference_of_logits"]}.

| weights | dev accuracy | predict, s | `.keras`, MB |
|---|---|---|---|
{rows}
"""
    write(arguments.out / f"int8_score_{record['backend']}.md", text, record)
    print(text)


if __name__ == "__main__":
    main()

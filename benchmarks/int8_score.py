"""Measure what int8 costs and saves for a classifier of SST-2: dev accuracy, seconds, bytes; Keras and ONNX Runtime.

    KBZ_DATA=DATA KERAS_BACKEND=torch python benchmarks/int8_score.py --preset PRESET

`PRESET` is any preset, `DATA` holds `glue/SST-2`. The script fine-tunes on the first `--sentences` of the training set
for one epoch with batch size 32, peak learning rate 5e-5 and 10 % warm-up. The same weights then predict the dev set
from raw strings in float32 and int8: in Keras after `quantize("int8")`, and exported to ONNX after ONNX Runtime's own
`quantize_dynamic`. They take turns; seconds are the median of `--runs` after one that does not count. Keras' models are
loaded back from their `.keras` files. Results go to `results/int8_score_<backend>.json` and `.md`.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from contenders import predict_in_onnx_runtime
from process import quantized
from reports import about, data_folder, describe, table, write

import keras_bert_zoo as kbz

RESULTS = Path(__file__).parent / "results"
FLOAT, INT8, FLOAT_ONNX, INT8_ONNX = "float32", "int8", "float32, ONNX Runtime", "int8, ONNX Runtime"


def finetune(arguments: argparse.Namespace, train: Any) -> Any:
    keras.utils.set_random_seed(arguments.seed)
    model = kbz.BertTextClassifier.from_preset(arguments.preset, num_classes=2, sequence_length=128)
    model.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(arguments.learning_rate)))
    model.fit(train.x[: arguments.sentences], train.y[: arguments.sentences], batch_size=32, epochs=1, verbose=2)
    model.compile()  # Without the optimizer's moments, which would be two thirds of the file.
    return model


def in_keras(model: Any, file: Path, texts: list[str]) -> Callable[[], np.ndarray]:
    model.save(file)
    loaded = keras.models.load_model(file)
    expected = model.predict(texts, verbose=0)
    assert np.array_equal(loaded.predict(texts, verbose=0), expected), "the file gives other logits"
    return lambda: loaded.predict(texts, verbose=0)


def in_onnx_runtime(preprocessor: Any, file: Path, texts: list[str]) -> Callable[[], np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda: predict_in_onnx_runtime(session, preprocessor, texts)


def line_up(model: Any, folder: Path, texts: list[str]) -> dict[str, tuple[Callable[[], np.ndarray], Path]]:
    """Return, for each contender, what predicts and its file."""
    paths = {FLOAT: folder / "float32.keras", INT8: folder / "int8.keras", FLOAT_ONNX: folder / "float32.onnx"}
    model.export(paths[FLOAT_ONNX], format="onnx")
    paths[INT8_ONNX] = quantized(paths[FLOAT_ONNX])
    predict = {name: in_onnx_runtime(model.preprocessor, paths[name], texts) for name in (FLOAT_ONNX, INT8_ONNX)}
    predict[FLOAT] = in_keras(model, paths[FLOAT], texts)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Layer .* does not have a `quantize` method")
        model.quantize("int8")
    predict[INT8] = in_keras(model, paths[INT8], texts)
    return {name: (predict[name], path) for name, path in paths.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--sentences", type=int, default=6400)
    parser.add_argument("--dev", type=int, help="only the first of the dev set")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    facts = about("int8_score.py", arguments)

    folder = data_folder() / "glue" / "SST-2"
    dev = kbz.data.read_glue("sst2", folder / "dev.tsv")
    texts, labels = dev.x[: arguments.dev], np.array(dev.y[: arguments.dev])
    model = finetune(arguments, kbz.data.read_glue("sst2", folder / "train.tsv"))
    seconds: dict[str, list[float]] = {}
    logits = {}
    with tempfile.TemporaryDirectory() as files:
        contenders = line_up(model, Path(files), texts)
        megabytes = {name: round(path.stat().st_size / 1e6, 1) for name, (_, path) in contenders.items()}
        for turn in range(arguments.runs + 1):
            for name, (predict, _) in contenders.items():
                start = time.perf_counter()
                logits[name] = predict()
                if turn:
                    seconds.setdefault(name, []).append(round(time.perf_counter() - start, 3))
    results = {
        name: {
            "dev_accuracy": round(float((logits[name].argmax(-1) == labels).mean()), 4),
            "same_class": round(float((logits[name].argmax(-1) == logits[FLOAT].argmax(-1)).mean()), 4),
            "largest_difference_of_logits": round(float(np.abs(logits[name] - logits[FLOAT]).max()), 4),
            "seconds": seconds[name],
            "file_megabytes": megabytes[name],
        }
        for name in contenders
    }
    backend = keras.backend.backend()
    rows = [
        ["weights", "dev accuracy", "same class", "logits differ by", "predict, s, median (fastest..slowest)", "MB"]
    ]
    for name, found in results.items():
        spread = f"{statistics.median(seconds[name]):.2f} ({min(seconds[name]):.2f}..{max(seconds[name]):.2f})"
        apart = f"{found['same_class']:.2%}", f"{found['largest_difference_of_logits']:.4f}"
        rows.append([name, f"{found['dev_accuracy']:.4f}", *apart, spread, f"{found['file_megabytes']:.1f}"])
    of = f"{Path(arguments.preset).name} after {arguments.sentences:,} sentences, seed {arguments.seed}, on {backend};"
    of += f" {len(texts)} dev sentences. Class and logits beside float32's."
    text = "\n".join(["# int8 beside float32 on SST-2", "", *describe(facts), "", of, "", table(rows)]) + "\n"
    write(arguments.out / f"int8_score_{backend}.md", text, {"about": facts, "results": results})
    print(text)


if __name__ == "__main__":
    main()

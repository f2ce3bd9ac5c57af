"""Measure how far each checkpoint layout's outputs are from transformers' with the same weights.

    KERAS_BACKEND=torch python -m benchmarks.checkpoint_layouts --preset PRESET
    python -m benchmarks.checkpoint_layouts --preset PRESET --backends tensorflow,jax,torch --out TABLE.md

PRESET is a Hugging Face BERT directory. The tests' writers write it in every layout that `from_preset` reads. Each
is loaded again and run in float32 on 8 inputs of up to 64 tokens with padding and both segments. The result is the
largest absolute difference over all tokens and the pooled output. For half precision transformers loads the same file
as float32.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", type=Path, required=True, help="a Hugging Face BERT directory")
    parser.add_argument("--backends", help="comma-separated, each in a process of its own; else KERAS_BACKEND")
    parser.add_argument("--out", type=Path, help="file for the table, beside printing it")
    args = parser.parse_args()
    if args.backends:
        columns = {backend: measure_in_a_process(backend, args.preset) for backend in args.backends.split(",")}
    else:
        import keras

        columns = {keras.backend.backend(): {name: f"{value:.1e}" for name, value in measure(args.preset)}}
    table = markdown(columns)
    print(table, end="")
    if args.out:
        args.out.write_text(table)


def measure(preset: Path) -> Iterator[tuple[str, float]]:
    """Yield each layout and its largest difference."""
    import transformers

    from tests import layouts

    model = transformers.BertModel.from_pretrained(preset).eval()
    yield "as released", difference(preset, model)
    for name, write in layouts.LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(model, Path(folder))
            yield name, difference(Path(folder), layouts.reference(model, name, Path(folder)))


def difference(folder: Path, model: Any) -> float:
    import numpy as np
    import torch

    import keras_bert_zoo as kbz
    from tests.helpers import numpy, random_inputs

    inputs = random_inputs(batch=8, length=64, vocabulary_size=model.config.vocab_size)
    ours = kbz.BertBackbone.from_preset(folder)(inputs)
    with torch.no_grad():
        theirs = model(*(torch.tensor(inputs[k]).long() for k in ("token_ids", "padding_mask", "segment_ids")))
    tokens = np.abs(numpy(ours["sequence_output"]) - theirs.last_hidden_state.numpy())[inputs["padding_mask"] == 1]
    pooled = np.abs(numpy(ours["pooled_output"]) - theirs.pooler_output.numpy())
    return float(max(tokens.max(), pooled.max()))


def measure_in_a_process(backend: str, preset: Path) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.checkpoint_layouts", "--preset", str(preset)],
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows[1:]}


def markdown(columns: dict[str, dict[str, str]]) -> str:
    layouts = next(iter(columns.values()))
    lines = [["layout", *columns], *([name, *(column[name] for column in columns.values())] for name in layouts)]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]]) + "\n"


if __name__ == "__main__":
    main()

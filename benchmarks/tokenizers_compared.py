"""Compare both engines of the tokenizer with transformers and the original algorithm on real text, and time them.

    KBZ_DATA=DATA PYTHONPATH=. python benchmarks/tokenizers_compared.py --out OUT

Prints, and writes to OUT, how many texts of each corpus get other ids than from transformers' `BertTokenizer`, and how
many texts per second each engine processes. Needs the extras `tensorflow` and `test`.
"""

import argparse
import statistics
import time
from pathlib import Path

from reports import about, data_folder, describe, table, write

import keras_bert_zoo as kbz
from tests.corpora import VOCABULARIES, glue_texts, vocabulary
from tests.tokenizer_engines import ENGINES, mismatches


def mismatch_table(data):
    results = {name: mismatches(data, name) for name in VOCABULARIES}
    counts = next(iter(results.values()))[0]
    rows = [["corpus", "texts", *(f"{name}: {engine}" for name in results for engine in ENGINES)]]
    for corpus, count in counts.items():
        differing = [len(different[corpus, engine]) for _, different in results.values() for engine in ENGINES]
        rows.append([corpus, f"{count:,}", *map(str, differing)])
    examples = [
        f"- {name}, {engine}, {corpus}: {text[:200]!r}"
        for name, (_, different) in results.items()
        for (corpus, engine), texts in different.items()
        for text in texts[:3]
    ]
    return rows, examples


def speed_table(data, rounds=7):
    import tensorflow as tf

    texts = glue_texts(data, "SST-2")
    tokenizer = kbz.BertTokenizer(vocabulary(data, "bert-base-uncased"))
    graph = tokenizer.in_graph()
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(4096).cache()
    sum(1 for _ in dataset)
    stream = dataset.map(lambda batch: graph.encode_batch(batch).flat_values, tf.data.AUTOTUNE)

    def streamed():
        for _ in stream:
            pass

    contenders = {
        "`tokenizers` itself, `encode_batch_fast`, all cores": lambda: [
            encoding.ids for encoding in tokenizer._engine.encode_batch_fast(texts, add_special_tokens=False)
        ],
        "`BertTokenizer.encode_batch`, which asks it for each different word once": lambda: tokenizer.encode_batch(
            texts
        ),
        "in graph, `tf.data`": streamed,
    }
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    rates = {name: [len(texts) / seconds for seconds in measured[1:]] for name, measured in times.items()}
    base = statistics.median(next(iter(rates.values())))
    rows = [["engine on SST-2", "texts/s, median (slowest..fastest)", "vs `tokenizers`"]]
    for name, measured in rates.items():
        median = statistics.median(measured)
        rows.append([name, f"{median:,.0f} ({min(measured):,.0f}..{max(measured):,.0f})", f"{median / base:.1f}"])
    return rows, rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write, with JSON beside it")
    parser.add_argument("--speed-only", action="store_true", help="leave the mismatches out, which take minutes")
    arguments = parser.parse_args()
    data = data_folder()
    facts = about("tokenizers_compared.py", arguments)
    speeds, rates = speed_table(data)
    parts = ["# The tokenizer's two engines", "\n".join(describe(facts))]
    parts += ["## Speed", "SST-2, uncased; all cores.", table(speeds)]
    raw = {"about": facts, "texts_per_second": rates}
    if not arguments.speed_only:
        rows, examples = mismatch_table(data)
        raw["mismatches"] = rows
        parts += [
            "## Texts that differ from transformers' `BertTokenizer`",
            "`original` is the algorithm of google-research/bert, written anew in `tests/original_tokenizer.py`.",
            table(rows),
            *(["Of each the first three:", "\n".join(examples)] if examples else []),
        ]
    text = "\n\n".join(parts) + "\n"
    print(text)
    write(arguments.out, text, raw)


if __name__ == "__main__":
    main()

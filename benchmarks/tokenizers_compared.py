"""Compare both engines of the tokenizer with transformers and the original algorithm on real text, and time them.

    KBZ_DATA=DATA PYTHONPATH=. python benchmarks/tokenizers_compared.py --out OUT

Prints, and writes to OUT, how many texts of each corpus get other ids than from transformers' `BertTokenizer`, and how
many texts per second each engine processes. GiB: the most memory that a process of its own had, which imports Keras,
reads the texts and tokenises them once. Needs the extras `tensorflow` and `test`.
"""

import argparse
import multiprocessing
import statistics
import time
from functools import partial
from pathlib import Path

from process import memory
from reports import about, data_folder, describe, table, write

import keras_bert_zoo as kbz
from tests.corpora import VOCABULARIES, glue_texts, vocabulary


def mismatch_table(data):
    from tests.tokenizer_engines import ENGINES, mismatches  # Here, as it imports transformers, which takes memory.

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


def by_engine(texts, tokenizer):
    return lambda: [encoding.ids for encoding in tokenizer._engine.encode_batch_fast(texts, add_special_tokens=False)]


def by_tokenizer(texts, tokenizer):
    return lambda: tokenizer.encode_batch(texts)


def in_graph(texts, tokenizer):
    import tensorflow as tf

    graph = tokenizer.in_graph()
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(4096).cache()
    sum(1 for _ in dataset)
    stream = dataset.map(lambda batch: graph.encode_batch(batch).flat_values, tf.data.AUTOTUNE)

    def streamed():
        for _ in stream:
            pass

    return streamed


CONTENDERS = {
    "`tokenizers` itself, `encode_batch_fast`, all cores": by_engine,
    "`BertTokenizer.encode_batch`, which asks it for each different word once": by_tokenizer,
    "in graph, `tf.data`": in_graph,
}


def texts_and_tokenizer(data):
    return glue_texts(data, "SST-2"), kbz.BertTokenizer(vocabulary(data, "bert-base-uncased"))


def memory_of(data, name):
    CONTENDERS[name](*texts_and_tokenizer(data))()
    return memory("tokenizers")


def speed_table(data, rounds=7):
    # First: a process that is started counts the memory of the one that starts it, which is small as yet.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        took = dict(zip(CONTENDERS, pool.map(partial(memory_of, data), CONTENDERS, chunksize=1), strict=True))
    texts, tokenizer = texts_and_tokenizer(data)
    contenders = {name: make(texts, tokenizer) for name, make in CONTENDERS.items()}
    times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    rates = {name: [len(texts) / seconds for seconds in measured[1:]] for name, measured in times.items()}
    base = statistics.median(next(iter(rates.values())))
    rows = [["engine on SST-2", "texts/s, median (slowest..fastest)", "vs `tokenizers`", "GiB"]]
    for name, measured in rates.items():
        median = statistics.median(measured)
        spread, gib = f"{min(measured):,.0f}..{max(measured):,.0f}", f"{took[name] / 2**30:.2f}"
        rows.append([name, f"{median:,.0f} ({spread})", f"{median / base:.1f}", gib])
    return rows, rates, took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write, with JSON beside it")
    parser.add_argument("--speed-only", action="store_true", help="leave the mismatches out, which take minutes")
    arguments = parser.parse_args()
    data = data_folder()
    facts = about("tokenizers_compared.py", arguments)
    speeds, rates, took = speed_table(data)
    parts = ["# The tokenizer's two engines", "\n".join(describe(facts))]
    said = "SST-2, uncased; all cores. GiB: the most memory that a process of its own had, Keras and texts included."
    parts += ["## Speed", said, table(speeds)]
    raw = {"about": facts, "texts_per_second": rates, "peak_bytes": took}
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

"""What benchmarks take as measured, and what they say beside the numbers; none of them is run."""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# Of a model, for counting what it computes.
SIZES = {
    "num_layers": 1, "hidden_dim": 4, "intermediate_dim": 8, "num_heads": 2, "vocabulary_size": 5, "pooler": True
}  # fmt: skip


@pytest.fixture
def script(monkeypatch):
    """A function that imports a script from its own folder, as when the script runs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = {path.stem for path in BENCHMARKS.glob("*.py")}
    before = set(sys.modules)
    yield importlib.import_module
    for name in names & (set(sys.modules) - before):
        del sys.modules[name]


def test_a_row_of_another_machine_or_code_is_not_taken_as_measured(script, monkeypatch, tmp_path):
    contenders, machine = script("pretraining_contenders"), script("machine")
    measured = []

    def measure(work):
        measured.append(work)
        return {"seconds": [1.0], "device_name": ""}

    monkeypatch.setattr(contenders, "measure", measure)
    results, work = tmp_path / "rows.jsonl", contenders.Work()
    row = contenders.once(results, work, "scaling.py", sweep="length", n=64)
    assert contenders.once(results, work, "scaling.py", sweep="length", n=64) == row
    assert len(measured) == 1
    assert row["machine"] == machine.describe_machine()
    assert row["versions"]["Python"] == ".".join(map(str, sys.version_info[:3]))
    monkeypatch.setattr(machine, "cards", lambda: ("NVIDIA H200",))
    assert contenders.once(results, work, "scaling.py", sweep="length", n=64)["machine"].endswith("NVIDIA H200")
    monkeypatch.setattr(machine, "code", lambda script: f"other {script}")
    assert contenders.once(results, work, "scaling.py", sweep="length", n=64)["code"] == "other scaling.py"
    assert len(measured) == 3
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert contenders.newest(rows) == rows[-1:]


def test_a_contender_that_fails_stops_no_other_and_has_one_row(script, monkeypatch, tmp_path):
    """Side by side it is not tried again; by itself it is, and the newest row stands for it."""
    contenders, results = script("pretraining_contenders"), tmp_path / "rows.jsonl"
    work, said = contenders.Work(), {"a": {"first": 1.0}}
    turns = {"a": [{"seconds": 2.0, "peak_bytes": 3, "product_peak": 4.0}]}
    given = [(said, turns, {"b": "no memory"})]

    def take_turns(starts, *_):
        starts["b"].args[-1].write(b"why it failed")
        return given.pop()

    monkeypatch.setattr(contenders, "take_turns", take_turns)
    for _ in range(2):
        contenders.together(results, {"a": work, "b": work}, dict.fromkeys("ab", sys.executable), 1, sweep="s", n=1)
    measures = iter([{"error": "killed"}, {"seconds": [5.0]}])
    monkeypatch.setattr(contenders, "measure", lambda work: next(measures))
    for _ in range(3):
        contenders.once(results, work, "scaling.py", sweep="length", n=64)
    rows = contenders.newest([json.loads(line) for line in results.read_text().splitlines()])
    assert [row.get("error") or row["seconds"] for row in rows] == [[2.0], "no memory", [5.0]]
    assert (tmp_path / "rows.log").read_text() == "why it failed"


def test_rows_that_do_not_tell_their_machine_are_read(script):
    rows = [{"sweep": "length", "n": n, "seconds": [1.0]} for n in (64, 128)]
    assert script("pretraining_contenders").newest(rows) == rows
    facts = script("reports").about_rows("scaling.py", argparse.Namespace(), rows)
    assert "- Machine: unknown" in script("reports").describe(facts)


def test_a_report_is_current_on_its_machine_alone(script, monkeypatch, tmp_path):
    reports, out = script("reports"), tmp_path / "report.md"
    python, name = sys.executable, "load_time.py"
    assert not reports.is_current(out, name, python)
    for options in (argparse.Namespace(), argparse.Namespace(peers_python=python)):
        facts = reports.about(name, options)
        reports.write(out, "# A report\n", {"about": facts})
        assert reports.is_current(out, name, python)
    reports.write(out, "# A report\n", {"about": {**facts, "peers": {**facts["peers"], "torch": "1.0"}}})
    assert not reports.is_current(out, name, python)
    reports.write(out, "# A report\n", {"about": reports.about_rows(name, argparse.Namespace(), [reports.now(name)])})
    assert reports.is_current(out, name, python)
    reports.write(out, "# A report\n", {"about": facts})
    with monkeypatch.context() as patch:
        patch.setenv("MALLOC_TOP_PAD_", "7")
        assert not reports.is_current(out, name, python)
    assert reports.is_current(out, name, python)
    monkeypatch.setattr(reports, "identity", lambda script: {"machine": "another"})
    assert not reports.is_current(out, name, python)


def test_scores_of_another_preset_of_the_same_name_are_not_taken(script, monkeypatch, tmp_path):
    scores, started = script("finetune_scores"), []

    def run(command, **_):
        job = json.loads(command[-1])
        started.append(job["preset"])
        record = {**job, "preset": Path(job["preset"]).name, "share": str(scores.TASKS["mrpc"])}
        with Path(job["results"]).open("a") as file:
            file.write(json.dumps(record) + "\n")
        return argparse.Namespace(returncode=0)

    monkeypatch.setattr(scores.subprocess, "run", run)
    options = {"bfloat16": False, "random_batches": False, "normal_heads": False, "random": False, "threads": None}
    for folder in ("a", "b", "a"):
        preset = tmp_path / folder / "preset"
        preset.mkdir(parents=True, exist_ok=True)
        (preset / "model.safetensors").write_text(folder)
        given = {**options, "preset": preset, "learning_rate": 5e-5, "limit": None, "results": tmp_path / "results"}
        assert scores.start(argparse.Namespace(**given), "mrpc", 0, "keras_bert_zoo")
    assert started == [str(tmp_path / name / "preset") for name in ("a", "b")]


def test_code_is_that_of_what_measures(script, monkeypatch, tmp_path):
    """Whoever changes a script has it measure anew, and no other script; what scripts share is of all of them."""
    machine = script("machine")
    monkeypatch.setattr(machine, "_HERE", tmp_path)
    names = ("load_time.py", "import_time.py", "contenders.py", "process.py", "worker.py", "fresh.py")
    for name in names:
        (tmp_path / name).write_text("")

    def codes():
        machine.code.cache_clear()
        return [machine.code(name) for name in names[:2]]

    for name in names:
        before = codes()
        (tmp_path / name).write_text("changed")
        changed = [old != new for old, new in zip(before, codes(), strict=True)]
        assert changed == [name != "import_time.py", name != "load_time.py"], name


def test_other_options_are_measured_again(script, tmp_path):
    everything, reports = script("everything"), script("reports")
    command = ["load_time.py", "--rounds", "2"]
    facts = reports.about(command[0], argparse.Namespace())
    reports.write(tmp_path / "load_time.md", "# A report\n", {"about": facts})
    assert not everything.is_done("load_time", command, tmp_path, sys.executable)
    (tmp_path / "load_time.command").write_text("load_time.py --rounds 2")
    assert everything.is_done("load_time", command, tmp_path, sys.executable)
    assert not everything.is_done("load_time", command[:1], tmp_path, sys.executable)


def test_a_report_is_whole_where_nobody_failed(script, tmp_path):
    reports, out = script("reports"), tmp_path / "report.md"
    for raw, whole in (
        ({"left_out": {}}, True),
        ({"left_out": {"transformers": "killed"}}, False),
        ({"rows": [{"seconds": [1]}]}, True),
        ({"rows": [{"seconds": [1]}, {"error": "no memory"}]}, False),
    ):
        reports.write(out, "# A report\n", {"about": {}, **raw})
        assert reports.is_whole(out) == whole


def test_what_failed_in_part_goes_on_from_what_it_has(script, tmp_path):
    everything, reports, unfinished = script("everything"), script("reports"), tmp_path / "unfinished"
    rows = [{"seconds": [1]}, {"error": "no memory"}]
    for found, whole in ((rows, False), (rows[:1], True)):
        reports.write(unfinished / "scaling_jax.md", "# A report\n", {"about": {}, "rows": found})
        (unfinished / "scaling_jax.jsonl").write_text(f"{found}")
        assert everything.keep("scaling_jax", unfinished, tmp_path) == whole
        assert (tmp_path / "scaling_jax.jsonl").read_text() == f"{found}"
        assert reports.read(tmp_path / "scaling_jax.md")["rows"] == found
        assert len(list(unfinished.iterdir())) == (0 if whole else 3)


def test_what_is_not_measured_again_stays_in_the_summary(script, tmp_path):
    everything, results, work = script("everything"), tmp_path / "results", tmp_path / "work"
    for folder in (results, work):
        folder.mkdir()
    head = "# Speed, measured by `everything.py`"
    (results / "README.md").write_text(f"{head}\n\n## Of_Old\n\n0 s\n")
    for name, seconds in (("import_time", 1), ("load_time", 2), ("import_time", 3)):
        (work / f"{name}.md").write_text(f"# Of one\n\n{seconds} s\n\n## Below\n")
        everything.publish({name: name.title()}, {"Import_Time", "Load_Time"}, work, results)
    summary, others = (results / "README.md").read_text().split("\n\n## Other reports\n\n")
    assert summary == f"{head}\n\n## Import_Time\n\n3 s\n\n### Below\n\n## Load_Time\n\n2 s\n\n### Below"
    assert others.endswith(" measured.\n\n## Of_Old\n\n0 s\n")


def test_commands_are_told_without_paths(script, monkeypatch):
    reports = script("reports")
    for name in ("KBZ_DATA", "KERAS_BACKEND", *script("machine")._CHANGE_SPEED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1 2")
    paths = {"novels": [Path("/tmp/a"), Path("/tmp/b")], "preset": "/home/me/minilm", "out": Path("/tmp/out")}
    args = argparse.Namespace(**paths, tasks=["a", "b c"], quick=True, log=None)
    told = reports.describe_command("some.py", args, between=" ")
    command = "python benchmarks/some.py NOVELS/* --preset PRESET --out OUT --tasks a 'b c' --quick"
    assert told == f"MALLOC_TOP_PAD_='1 2' {command}"
    rows = [{"variables": {"OMP_NUM_THREADS": "1"}}]  # They were measured with other variables.
    told = reports.about_rows("some.py", argparse.Namespace(), rows)["command"]
    assert told == "OMP_NUM_THREADS=1 python benchmarks/some.py"


def test_unequal_tokens_stand_in_the_report(script):
    results = [
        {"task": "mrpc", "name": name, "tokens": tokens} for name, tokens in (("ours", 52.5), ("a peer", 47.25))
    ] + [{"task": "sst2", "name": name, "tokens": 13.0} for name in ("ours", "a peer")]
    assert list(script("finetune_speed_report").unequal_tokens(results)) == [
        "The contenders do not see the same tokens of mrpc: ours 52.5, a peer 47.2 an example."
    ]


def test_products_that_a_contender_leaves_out_are_no_share_of_a_peak(script):
    """Multiplications of a block of width 4, with two heads and 8 units within, on three tokens, and a pooler of 16."""
    computed = script("products").computed_flops
    query, folded, scores, output, inner = 16, 2 * 16, 2 * 3 * 4 * 2, 16, 2 * 32
    assert computed(SIZES, 3, True, folded=True) == 6 * (16 + query + folded + scores + output + inner)
    assert computed(SIZES, 3, True) == 6 * (16 + 3 * 3 * 16 + 2 * 3 * 4 + output + inner)
    assert computed(SIZES, 3, False) == 6 * (16 + 3 * (3 * 16 + 2 * 3 * 4 + output + inner))
    word = 16 + 4 * 5
    assert computed(SIZES, 3, True, 2) == 6 * (16 + 2 * word + 3 * (3 * 16 + 2 * 3 * 4 + output + inner))
    assert computed(SIZES, 3, False, 2) == 6 * (16 + 3 * word + 3 * (3 * 16 + 2 * 3 * 4 + output + inner))
    assert computed({**SIZES, "num_layers": 2}, 3, True) - computed(SIZES, 3, True) == 6 * 3 * (3 * 16 + 24 + 80)


def test_rates_are_of_an_example_whoever_takes_fewer(script):
    """A contender with four examples in 2 s beside one with two in 4 s."""

    def result(name, examples, seconds):
        turn = {"examples": examples, "seconds": seconds, "memory": 2**30}
        about = {"task": "mrpc", "dtype": "float32", "name": name, "ours": name == "ours", "orders": ["predict"]}
        facts = {"tokens": 10.0, "first_runs": None, "device_name": None, "peak": None}
        return {**about, **facts, "rounds": [{"predict": turn}] * 2}

    head, *found = script("finetune_speed_report").rows([result("ours", 4, 2.0), result("a peer", 2, 4.0)], SIZES)
    found = [dict(zip(head, line, strict=True)) for line in found]
    assert [line["predict examples/s"] for line in found] == ["2.0 (2.0..2.0)", "0.5 (0.5..0.5)"]
    assert [line["vs a peer"] for line in found] == ["- / 4.00", "-"]


def test_keras_hub_as_it_comes_runs_on_each_of_its_backends(script):
    options = {"backends": [], "device": "cpu", "runtimes": False, "peers_python": "python", "as_it_comes": True}
    args = argparse.Namespace(**options, keras_hub=["tensorflow", "jax"])
    found = {entry.name: entry for entry in script("finetune_speed").line_up(args, "8x128", "bfloat16")[2:]}
    assert list(found) == [f"keras-hub, {name}" for name in ("tensorflow", "jax", "tensorflow, 512", "jax, 512")]
    assert found["keras-hub, jax, 512"].options == {"sequence_length": 512, "bfloat16": True}
    assert [entry.backend for entry in found.values()] == ["tensorflow", "jax"] * 2


def test_a_peak_is_of_the_faster_product(script, monkeypatch):
    """On a card ten products are timed at once; PyTorch's two in float32 on a CPU compute the same."""
    process = script("process")
    values = np.random.default_rng(0).standard_normal((32, 32), "float32")
    for product in process._products("torch", "float32", "cpu", 32):
        np.testing.assert_allclose(product(1)[0], values @ values, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(process, "_products", lambda *_: [{1: 4.0, 10: 40.0}.get, {1: 2.0, 10: 20.0}.get])
    monkeypatch.setattr(process, "timed", lambda work, count: {"seconds": work(count)})
    assert process.peak("torch", "float32") == 2 * 2048**3 / 2
    assert process.peak("torch", "float32", "gpu") == 2 * 4096**3 / 2


def test_pytorch_multiplies_float32_on_a_card_as_others_do(script, monkeypatch):
    contenders, told = script("pretraining_contenders"), []
    monkeypatch.setattr("torch.set_float32_matmul_precision", told.append)
    for name in ("device_name", "memory", "release"):
        monkeypatch.setattr(contenders, name, lambda *_: None)
    monkeypatch.setattr(contenders, "CONTENDERS", {"keras_bert_zoo": lambda work: lambda steps: None})
    for backend, device in (("torch", "cpu"), ("jax", "gpu"), ("torch", "gpu")):
        contenders.prepare(contenders.Work(backend=backend, device=device))
    assert told == ["high"]


def test_the_table_of_shard_making_tells_memory(script):
    runs = [{"seconds": 2.0, "processor": 3.0, "examples": 40, "GiB": gib} for gib in (0.5, 0.75)]
    lines = script("prepare_speed").table({"ours 1": runs, "ours 10": runs}, 100).splitlines()
    head, *found = [row(line) for line in lines if line.startswith("|") and "---" not in line]
    assert [dict(zip(head, line, strict=True))["GiB"] for line in found] == ["0.75", "0.75"]


def test_one_command_runs_every_benchmark_of_speed(script, tmp_path):
    everything = script("everything")
    args = argparse.Namespace(preset=Path("P"), peers_python="python", novels=[Path("n.txt")], original=None, rounds=2)
    wanted = everything.reports(args, Path("B"), tmp_path)
    for size in ("minilm", "base"):
        assert {f"{size}_{task}_{dtype}" for task in ("mrpc", "sst2", "squad") for dtype in everything.DTYPES} <= {
            *wanted
        }
    scripts = {command[0] for _, command in wanted.values()}
    assert all((BENCHMARKS / name).is_file() for name in scripts)
    assert {"prepare_speed.py", "scaling.py", "int8_score.py", "pretraining_step.py", "import_time.py"} <= scripts
    assert "--runtimes" in wanted["base_8x128_float32"][1]
    assert all("--rounds 2" in " ".join(wanted[name][1]) for name in ("base_8x128_float32", "pretraining_step"))


def row(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


NAMES = {
    "cola, matthews": "CoLA, Matthews",
    "rte, accuracy": "RTE, accuracy",
    "stsb, pearson": "STS-B, Pearson",
    "stsb, spearman": "STS-B, Spearman",
    "conll, f1": "CoNLL, F1",
    "dream, accuracy": "DREAM, accuracy",
    "squad, f1": "SQuAD 1.1, F1",
    "squad, exact_match": "SQuAD 1.1, exact match",
    "squad2, best_f1": "SQuAD 2.0, best F1",
}


def test_the_scores_on_the_pages_are_those_of_the_results(script):
    """The benchmarks' table has rows that `finetune_scores.py --table` prints; our preset's card has its numbers."""
    scores = script("finetune_scores")
    printed = [row(line) for line in scores.table(scores.read_lines(scores.RESULTS))]
    page = (BENCHMARKS / "scores.md").read_text("utf-8").split("| task, score | seeds |")[1].split("\n\n")[0]
    rows = [row(line) for line in page.splitlines()[2:]]
    assert len(rows) == 13
    for name, *cells in rows:
        (task,) = [task for _, task, _, *others in printed if others == cells]
        assert name.startswith(("the same", NAMES[task])), name
    records = scores.read_lines(BENCHMARKS / "results" / "preset_scores.jsonl")
    pooled = [{**record, "contender": record["contender"].removesuffix(", bfloat16")} for record in records]
    gains = "\n".join([*scores.gains(records), *scores.gains(pooled)])  # SST-2 has seeds in both precisions.
    card = (BENCHMARKS.parent / "presets" / "bert_mini_novels" / "README.md").read_text("utf-8")
    found = re.findall(r"-?[\d.]+ ± [\d.]+ \([^)]+\)", card)
    assert len(found) >= 14
    assert [numbers for numbers in found if numbers not in gains] == []


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX's kernels")
def test_an_interruption_of_the_kernels_loses_nothing(script, monkeypatch, tmp_path):
    kernels, out = script("card_kernels"), tmp_path / "card_kernels.md"
    row = {"kernel": "attention", "part": "forward", "size": (1, 2, 3), "tile": {"block_m": 4}, "microseconds": 5.0}

    def measure(interpret):
        yield row
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["card_kernels.py", "--interpret", "--out", str(out)])
    with pytest.raises(KeyboardInterrupt):
        kernels.main()
    assert "| attention | 1 x 2 x 3 | block_m 4 | 5 | 1.00 |" in out.read_text()


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX's kernels")
def test_the_kernels_of_a_card_run_in_all_tiles(script):
    kernels = script("card_kernels")
    rows = list(kernels.measure(interpret=True))
    assert not [row for row in rows if "error" in row]
    head, *lines = kernels.lines(rows)
    assert len(lines) == len(rows) == 2 * len(kernels.KERNELS) * 2
    assert all(len(line) == len(head) for line in lines)
    assert sum(line[-1] == "1.00" for line in lines) >= 2 * len(kernels.KERNELS)

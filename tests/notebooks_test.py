"""Each notebook runs from top to bottom in a kernel of its own, and computes what its prose says."""

import json
import re
import runpy
from pathlib import Path

import keras
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
TOOL = runpy.run_path(str(NOTEBOOKS / "execute.py"))

# What is asserted after the last cell, in the notebook's namespace.
CHECKS = {
    "1_quick_start": """
assert scores["accuracy"] > 0.85, scores
assert history["val_accuracy"][-1] == scores["accuracy"]
assert confusion.sum() == 200 and confusion.trace() == 200 - len(wrong)
np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
assert difference < 1e-5
""",
    "2_squad_long_contexts": """
assert scores["HasAns_exact"] > 90, scores
assert len(logits) > 1 and span.text and long[span.start : span.end] == span.text
""",
    "3_ner": """
assert fine_tuned["val_f1"][-1] > 0.9 and feature_based["val_f1"][-1] > 0.8
assert np.mean(found[True]) > 0.9 and np.mean(found[False]) > 0.8
assert fine_tuned["val_f1"][-1] == kbz.metrics.entity_scores(dev.tags, predicted)["f1"]
""",
    "4_pretrain_your_own_text": """
assert last["val_mlm_accuracy"] > 0.5 > log[0]["val_mlm_accuracy"] + 0.2, log
(best,) = blanks.fill_mask("The miller goes to the [MASK] before breakfast.", top_k=3)
assert {token for token, _ in best} <= {"field", "mill", "shop", "harbour", "school", "forge", "orchard"}, best
assert classifier.load_report.fresh == ("classifier/kernel", "classifier/bias")
""",
    "5_keras_tuner_sweep": """
assert len(table) == 3 and all(row["restarts"] == 2 and row["status"] == "COMPLETED" for row in table)
assert table[0]["val_accuracy"] > 0.8 and abs(accuracy - table[0]["best"]) < 1e-6
assert kbz.tuning.table(again) == table
""",
    "6_tpu_and_workers": """
assert name == "mirrored"
assert apart < 1e-5 and apart_workers < 1e-5
np.testing.assert_allclose(losses["mirrored"], losses[None], rtol=1e-5)
""",
    "7_hugging_face_and_back": """
assert apart < 1e-5 and apart_back < 1e-4 and exact
assert accuracy > 0.8 and again.config.id2label == {0: "negative", 1: "positive"}
assert (report.fresh, report.unused) == ((), ())
""",
}
QUICK = "1_quick_start"


@pytest.mark.filterwarnings("ignore")  # Jupyter's warnings about itself.
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="they are the same on each backend: once is enough")
@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CHECKS]
)
def test_it_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    if name == "6_tpu_and_workers":
        pytest.importorskip("tensorflow", reason="its strategies")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # Everything that a notebook writes goes there.
    before = {path.name for path in NOTEBOOKS.iterdir()}
    TOOL["execute"](NOTEBOOKS / f"{name}.ipynb", CHECKS[name])
    assert {path.name for path in NOTEBOOKS.iterdir()} - {"__pycache__"} == before - {"__pycache__"}


def test_they_are_kept_with_their_outputs():
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [path.stem for path in paths] == sorted(CHECKS)
    for path in paths:
        assert path.stat().st_size < 300_000, path
        kept = nbformat.read(path, as_version=4)
        nbformat.validate(kept)
        code = [cell for cell in kept.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), path
        assert [cell.id for cell in kept.cells] == [f"cell-{i:02}" for i in range(len(kept.cells))], path
        outputs = [output for cell in code for output in cell.outputs]
        assert any("image/png" in output.get("data", {}) for output in outputs) or path.stem == "6_tpu_and_workers", (
            path
        )
        assert not [output for output in outputs if output.output_type == "error"], path
        printed = "".join(output.get("text", "") for output in outputs)
        assert not re.search("warning|absl|/home/", printed, re.IGNORECASE), path
        assert not re.search(r"(?<!\w)/(?!tmp/)\w[\w.-]*/", printed), f"{path}: a path of the machine that it ran on"
        tidied = json.dumps(kept, sort_keys=True)
        TOOL["tidy"](kept)
        assert json.dumps(kept, sort_keys=True) == tidied, f"{path} was not written by `make notebooks`"

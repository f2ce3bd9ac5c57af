"""Model cards: their front matter as the hub reads it, their code as it runs, and cards that somebody wrote."""

import json
import re

import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TEXTS, TINY, WORDS, left_to_torch, randomise

if left_to_torch():
    pytest.skip("files know no backend: once is enough", allow_module_level=True)


def card(preset):
    return (preset / "README.md").read_text("utf-8")


def front(preset):
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(card(preset).split("---\n")[1])


def models(tokenizer):
    backbone, pair = kbz.BertBackbone(**TINY), kbz.BertPreprocessor(tokenizer, 12)
    return {
        "feature-extraction": backbone,
        "text-classification": kbz.BertTextClassifier(backbone, class_names=["no", "yes"], preprocessor=pair),
        "token-classification": kbz.BertTokenClassifier(backbone, 2),
        "question-answering": kbz.BertQuestionAnswerer(backbone),
        "multiple-choice": kbz.BertMultipleChoice(backbone),
        "fill-mask": kbz.BertPretrainer(backbone, pair),
        "text-generation": kbz.BertMaskedLM(kbz.BertBackbone(**TINY, causal=True)),
        "sentence-similarity": kbz.BertTextEmbedder(backbone, preprocessor=pair),
        None: kbz.BertNextSentencePredictor(backbone),
    }


def test_a_card_says_what_it_is_and_its_code_runs(tokenizer, tmp_path):
    """The code for sentence-transformers is only looked at, because that package is not installed here."""
    pytest.importorskip("torch")  # transformers' models need it.
    transformers = pytest.importorskip("transformers")
    for number, (task, model) in enumerate(models(tokenizer).items()):
        preset = tmp_path / str(number)
        model.save_to_preset(preset)
        matter = front(preset)
        assert (matter["license"], matter.get("pipeline_tag")) == ("unknown", task)
        assert matter["tags"][:2] == ["bert", "keras"]
        blocks = re.findall(r"```python\n(.*?)```", card(preset), re.DOTALL)
        for library, code in zip(("keras_bert_zoo", matter["library_name"]), blocks, strict=True):
            if library == "sentence-transformers":
                assert "SentenceTransformer(" in code
                continue
            names = {}
            exec(code.replace("path/to/it", str(preset)), names)
            assert type(names["model"]).__module__.startswith(library)
            if library == "transformers":
                config = json.loads((preset / "config.json").read_text())
                assert type(names["model"]).__name__ == config["architectures"][0]
                assert isinstance(names["model"], transformers.PreTrainedModel)
    assert number == 8
    assert '| case | uncased |\n\n## Labels\n\n    0: "no"\n    1: "yes"\n' in card(tmp_path / "1")


def test_a_card_has_the_architecture_and_the_labels(tmp_path):
    """No two rows have the same number."""
    backbone = kbz.BertBackbone(**{**TINY, "vocabulary_size": 1040, "num_heads": 4, "activation": "relu"})
    pair = kbz.BertPreprocessor(kbz.BertTokenizer(WORDS, lowercase=False), 12)
    options = {"class_names": ["no", "yes"], "multi_label": True}
    kbz.BertTextClassifier(backbone, **options, preprocessor=pair).save_to_preset(tmp_path / "classifier")
    text = card(tmp_path / "classifier")
    encoder = sum(int(np.prod(weight.shape)) for weight in backbone.weights)
    rows = [
        "| | |",
        "|---|---|",
        "| layers | 2 |",
        "| width | 8 |",
        "| attention heads | 4 |",
        "| width of the feed-forward nets | 16 |",
        "| activation | relu |",
        "| longest input | 12 tokens |",
        "| vocabulary | 1,040 tokens |",
        f"| parameters of the encoder | {encoder:,} |",
        "| case | cased |",
    ]
    assert [line for line in text.splitlines() if line.startswith("|")] == rows
    assert '\n\n## Labels, any number of them at once\n\n    0: "no"\n    1: "yes"\n' in text
    for normalize, pooling in ((True, "max, length 1"), (False, "max")):
        kbz.BertTextEmbedder(backbone, "max", normalize).save_to_preset(tmp_path / "embedder")
        assert "| longest input | 16 tokens |\n" in card(tmp_path / "embedder")
        assert f"| pooling | {pooling} |\n" in card(tmp_path / "embedder")


def test_a_card_that_somebody_wrote_stays(backbone, classifier, tmp_path):
    preset = tmp_path / "preset"
    backbone.save_to_preset(preset)
    randomise(classifier).save_to_preset(preset)
    assert "# BERT: text classification" in card(preset)  # A card that nobody edited follows the model.
    edited = card(preset).replace("Nobody has written here", "It was trained on two lines; nobody has written here")
    (preset / "README.md").write_text(edited)
    backbone.save_to_preset(preset)
    assert card(preset) == edited
    for mine in ("My own.\n", "", "<!-- Written by keras-bert-zoo: 0123456789abcdef -->\n", "\xff <!--"):
        (preset / "README.md").write_text(mine, encoding="latin-1")
        classifier.save_to_preset(preset)
        assert (preset / "README.md").read_text("latin-1") == mine
    assert kbz.BertTextClassifier.from_preset(preset).predict(TEXTS, verbose=0).shape == (6, 3)


def test_labels_cannot_become_markdown(backbone, tmp_path):
    names = ["a`b", "</pre><script>", "two\n\n# lines", "---", *map(str, range(200))]
    kbz.BertTextClassifier(backbone, class_names=names).save_to_preset(tmp_path / "preset")
    text = card(tmp_path / "preset")
    assert '    2: "two\\n\\n# lines"\n' in text
    assert "    and 104 more\n" in text
    assert len(text) < 4000

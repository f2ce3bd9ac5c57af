"""The embedder: sentence-transformers' vectors, reading and writing its directories, and what is refused."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import TEXTS, TINY, check_saving, numpy, random_inputs, randomise, short_error, slow_on, streams

SENTENCES = [
    "This is an example sentence",
    "Each sentence is converted",
    "Quarterly revenue rose by 12% to $3.4bn, the company said on Tuesday.",
    "naïve Café",
    "",
    " ".join(f"On day {day} we walked {day + 3} miles along the river and met nobody." for day in range(1, 25)),
]
CASES = [(pooling, normalize) for pooling in ("mean", "cls", "max") for normalize in (False, True)]
VECTORS = Path(__file__).with_name("sentence_vectors.npz")


@pytest.fixture(scope="module")
def theirs():
    """sentence-transformers' vectors; `sentence_vectors.py` wrote them."""
    with np.load(VECTORS) as file:
        return dict(file)


def pooled(hidden, mask, pooling, normalize):
    """Do what sentence-transformers documents for its Pooling and Normalize, one text at a time."""
    rows = []
    for vectors, there in zip(hidden.astype("float64"), mask, strict=True):
        tokens = vectors[there == 1]
        vector = {"mean": tokens.mean(0), "cls": tokens[0], "max": tokens.max(0)}[pooling]
        rows.append(vector / np.linalg.norm(vector) if normalize else vector)
    return np.array(rows)


def make(tokenizer, **options):
    backbone = kbz.BertBackbone(**TINY, pooler=False)
    return kbz.BertTextEmbedder(backbone, preprocessor=kbz.BertPreprocessor(tokenizer, 16), **options)


@slow_on("tensorflow", "jax")
def test_a_real_directory_of_sentence_transformers(minilm, theirs):
    embedder = kbz.BertTextEmbedder.from_preset(minilm)
    assert embedder.head_config() == {"pooling": "mean", "normalize": True}
    assert embedder.preprocessor.sequence_length == 256
    assert len(embedder.preprocessor.tokenizer.encode(SENTENCES[-1]).token_ids) > 256
    assert embedder.load_report.unused == ("pooler/kernel", "pooler/bias")
    vectors = embedder.embed(SENTENCES, batch_size=2)
    for pooling, normalize in CASES:  # The last text is long, so it is compared only once, below.
        other = kbz.BertTextEmbedder(embedder.backbone, pooling, normalize, embedder.preprocessor)
        expected = theirs[f"minilm {pooling} {normalize}"][:-1]
        np.testing.assert_allclose(other.embed(SENTENCES[:-1]), expected, rtol=0, atol=1e-5, err_msg=pooling)
    np.testing.assert_allclose(vectors, theirs["minilm mean True"], rtol=0, atol=1e-5)
    np.testing.assert_allclose((vectors**2).sum(-1), 1, atol=1e-5)

    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(minilm).eval()
    inputs = embedder.preprocessor(SENTENCES)
    with torch.no_grad():
        hidden = model(*(torch.tensor(inputs[k]).long() for k in ("token_ids", "padding_mask", "segment_ids")))
    expected = pooled(hidden.last_hidden_state.numpy(), inputs["padding_mask"], "mean", True)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    # Other tasks ignore what the directory says about embedders.
    assert kbz.BertTextClassifier.from_preset(minilm, num_classes=2).preprocessor.sequence_length == 512


@pytest.mark.parametrize("pooling, normalize", CASES)
def test_sentence_transformers_gave_the_same_vectors_of_a_preset(pooling, normalize, tokenizer, theirs):
    embedder = randomise(make(tokenizer, pooling=pooling, normalize=normalize))
    np.testing.assert_allclose(embedder.embed(TEXTS), theirs[f"tiny {pooling} {normalize}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling, normalize", CASES)
def test_sentence_transformers_opens_a_preset(pooling, normalize, tokenizer, tmp_path):
    """Last run with sentence-transformers 6.2.0."""
    library = pytest.importorskip("sentence_transformers", reason="not installed: pip install sentence-transformers")
    embedder = randomise(make(tokenizer, pooling=pooling, normalize=normalize))
    embedder.save_to_preset(tmp_path / "preset")
    opened = library.SentenceTransformer(str(tmp_path / "preset"), device="cpu")
    np.testing.assert_allclose(opened.encode(TEXTS), embedder.embed(TEXTS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling, normalize", [("mean", False), ("cls", True), ("max", True)])
def test_pooling_and_presets(pooling, normalize, tokenizer, tmp_path):
    embedder = randomise(make(tokenizer, pooling=pooling, normalize=normalize))
    inputs = embedder.preprocessor(TEXTS)
    expected = pooled(numpy(embedder.backbone(inputs)["sequence_output"]), inputs["padding_mask"], pooling, normalize)
    vectors = embedder.embed(TEXTS, batch_size=4)
    np.testing.assert_allclose(vectors, expected, atol=5e-6)
    embedder.save_to_preset(tmp_path / "preset")
    back = kbz.BertTextEmbedder.from_preset(tmp_path / "preset")
    assert back.head_config() == {"pooling": pooling, "normalize": normalize}
    assert back.preprocessor.sequence_length == 16
    np.testing.assert_array_equal(back.embed(TEXTS, batch_size=4), vectors)
    other = kbz.BertTextEmbedder.from_preset(tmp_path / "preset", pooling="mean", normalize=False, sequence_length=8)
    assert (other.head_config(), other.preprocessor.sequence_length) == ({"pooling": "mean", "normalize": False}, 8)
    # Saving another class in its place leaves nothing of the embedder.
    embedder.backbone.save_to_preset(tmp_path / "preset")
    assert not [path for path in (tmp_path / "preset").iterdir() if path.is_dir() or path.name == "modules.json"]
    assert kbz.BertTextEmbedder.from_preset(tmp_path / "preset").pooling == "mean"


def test_saving(tokenizer, tmp_path):
    loaded = check_saving(lambda: make(tokenizer, pooling="max", normalize=True), random_inputs(), tmp_path)
    assert loaded.embed(TEXTS).shape == (6, 8)


def test_fit_learns_the_vectors_of_another(tokenizer):
    teacher = randomise(make(tokenizer, pooling="cls"), scale=0.5)
    targets = teacher.embed(TEXTS)
    learner = make(tokenizer)
    assert learner.optimizer.get_config()["learning_rate"]["config"]["learning_rate"] == 2e-5
    learner.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(1e-2), bias_correction=True))
    first = learner.evaluate(TEXTS, targets, verbose=0)
    assert first == pytest.approx(np.mean((learner.embed(TEXTS) - targets) ** 2), rel=1e-4)
    learner.fit(TEXTS, targets, batch_size=6, epochs=10, verbose=0)
    assert learner.evaluate(TEXTS, targets, verbose=0) < 0.8 * first
    for y, words in (
        (targets[:5], "`y` must have the shape (6, 8), one vector per text. Received: y.shape=(5, 8)"),
        (targets.astype(int), "`y` must hold floating-point numbers. Received: y.dtype=int64"),
        (targets * np.nan, "`y` must hold finite numbers. Received: y with "),
        (targets.astype("float64") * 1e39, "`y` must hold finite numbers. Received: y with "),
    ):
        with short_error(words):
            learner.fit(TEXTS, y, verbose=0)


def test_a_column_of_vectors(tokenizer):
    """A data frame's column holds each vector as an object."""
    embedder, vectors = make(tokenizer), np.random.default_rng(0).normal(size=(6, 8))
    column = np.empty(6, dtype=object)
    column[:] = list(vectors)
    assert embedder.evaluate(TEXTS, column, verbose=0) == embedder.evaluate(TEXTS, vectors, verbose=0)
    column[1] = vectors[1, :7]
    with short_error("`y` must have the shape (6, 8), one vector per text. Received: y.shape=(6,)"):
        embedder.evaluate(TEXTS, column, verbose=0)


def test_vectors_stream_as_they_are_at_hand(tokenizer):
    """Otherwise a column would be learned as every number of its vector, and NaN would destroy the model."""
    embedder, inputs = make(tokenizer), random_inputs()
    y = np.random.default_rng(0).normal(size=(3, 8))
    expected = embedder.evaluate(inputs, y, verbose=0)
    for stream in streams((inputs, y)):
        assert embedder.evaluate(stream, steps=1, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert embedder.test_on_batch(inputs, y) == pytest.approx(expected, rel=1e-5)
    before = embedder.get_weights()
    for bad, words in ((y[:, :1], "`y` must have the shape (3, 8)"), (y * np.nan, "`y` must hold finite")):
        for stream in streams((inputs, bad)):
            with short_error(words):
                embedder.fit(stream, steps_per_epoch=1, verbose=0)
        for run in (embedder.train_on_batch, embedder.test_on_batch):
            with short_error(words):
                run(inputs, bad)
    for weight, old in zip(embedder.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


# What sentence-transformers 6 writes; we write the form of version 2.
NEW = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1, "name": "1", "path": "1_Pooling",
            "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        },
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"},
    ],
    "1_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": "cls", "include_prompt": True},
    "2_Normalize/config.json": {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"},
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    },
    "config_sentence_transformers.json": {"default_prompt_name": None, "prompts": {"query": "", "document": ""}},
}  # fmt: skip


def module(kind, path="2_X"):
    return [*NEW["modules.json"][:2], {"idx": 2, "name": "2", "path": path, "type": kind}]


def write(directory, files):
    for name, value in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(value))
    return directory


@pytest.fixture
def directory(tokenizer, tmp_path):
    make(tokenizer).save_to_preset(tmp_path / "preset")
    return write(tmp_path / "preset", NEW)


def test_a_directory_without_its_folders_is_refused(directory):
    """If it is copied without its folders, an embedder of `[CLS]` would become one of means."""
    shutil.rmtree(directory / "1_Pooling")
    with pytest.raises(ValueError, match=r"the Pooling must have its config.json. Received: none"):
        kbz.BertTextEmbedder.from_preset(directory)


def test_the_newer_form(directory, caplog):
    embedder = kbz.BertTextEmbedder.from_preset(directory)
    assert not caplog.records  # Its prompts are empty.
    assert embedder.head_config() == {"pooling": "cls", "normalize": True}
    assert embedder.preprocessor.sequence_length == 16
    assert embedder.preprocessor.tokenizer.lowercase


def test_what_older_forms_leave_out(directory):
    """A pooling without a name is that of means; a length is at most the number of positions."""
    pooling = {"1_Pooling/config.json": {"word_embedding_dimension": 8}}
    write(directory, {**pooling, "sentence_bert_config.json": {"max_seq_length": 512}})
    embedder = kbz.BertTextEmbedder.from_preset(directory)
    assert (embedder.pooling, embedder.preprocessor.sequence_length) == ("mean", 16)


def test_prompts_are_read_where_they_are_kept(directory):
    (directory / "config_sentence_transformers.json").unlink()
    write(directory, {"sentence_bert_config.json": {"max_seq_length": 12, "prompts": True, "default_prompt": [1]}})
    assert kbz.BertTextEmbedder.from_preset(directory).preprocessor.sequence_length == 12


def test_texts_are_lower_cased_where_the_directory_says_so(directory):
    config = json.loads((directory / "tokenizer_config.json").read_text())
    write(directory, {"tokenizer_config.json": {**config, "do_lower_case": False, "strip_accents": None}})
    assert not kbz.BertTextEmbedder.from_preset(directory).preprocessor.tokenizer.lowercase
    write(directory, {"sentence_bert_config.json": {"max_seq_length": 12, "do_lower_case": True}})
    preprocessor = kbz.BertTextEmbedder.from_preset(directory).preprocessor
    assert (preprocessor.sequence_length, preprocessor.tokenizer.lowercase) == (12, True)
    assert preprocessor.tokenizer.strip_accents is False


@pytest.mark.parametrize(
    "files, words",
    [
        ({"modules.json": module("sentence_transformers.models.Dense")}, "Received: 'sentence_transformers.models.D"),
        ({"modules.json": module("custom_code.Normalize")}, "Received: 'custom_code.Normalize'"),
        ({"modules.json": module("a\n" * 500)}, "perhaps a Normalize. Received: 'a"),
        ({"modules.json": NEW["modules.json"][:1]}, "must list a Transformer, a Pooling and perhaps a Normalize"),
        ({"modules.json": module("x.Y", "../up")}, "`path` must be a plain folder name. Received: '../up'"),
        ({"modules.json": {"0": "x"}}, "modules.json must hold a JSON list of modules"),
        ({"modules.json": [{**NEW["modules.json"][0], "path": "0_BERT"}, *NEW["modules.json"][1:]]}, "'0_BERT'"),
        ({"modules.json": [NEW["modules.json"][0]] * 17}, "modules.json must list at most 16 modules. Received: 17"),
        ({"1_Pooling/config.json": {}}, "modules.json: the Pooling must have its config.json. Received: none, or"),
        ({"1_Pooling/config.json": {"pooling_mode": "lasttoken"}}, "Received: ['lasttoken']"),
        ({"1_Pooling/config.json": {"pooling_mode": ["cls", "max"]}}, "must be one of ('mean', 'cls', 'max')"),
        ({"1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}}, "Received: ['weightedmean']"),
        ({"2_Normalize/config.json": {"module_input_name": "token_embeddings"}}, "Received: 'token_embeddings'"),
        ({"sentence_bert_config.json": {"transformer_task": "fill-mask"}}, "`transformer_task` must be"),
        ({"sentence_bert_config.json": {"max_seq_length": "long"}}, "`max_seq_length` must be of type int"),
        (
            {"config_sentence_transformers.json": {"default_prompt_name": "query", "prompts": {"query": "query: "}}},
            "`default_prompt_name` must name no prompt. Received: 'query: '",
        ),
    ],
)  # fmt: skip
def test_directories_that_would_give_other_vectors_are_refused(directory, files, words):
    write(directory, files)
    with short_error(words):
        kbz.BertTextEmbedder.from_preset(directory)


def test_bad_arguments(tokenizer):
    with pytest.raises(ValueError, match=r"`pooling` must be one of \('mean', 'cls', 'max'\). Received: pooling='sum'"):
        make(tokenizer, pooling="sum")
    with pytest.raises(ValueError, match=r"has no argument of this name. Received: colour"):
        make(tokenizer, colour="red")


def test_half_precision(tokenizer):
    embedder = kbz.BertTextEmbedder(
        kbz.BertBackbone(**TINY, dtype="mixed_bfloat16"), "max", True, kbz.BertPreprocessor(tokenizer, 16)
    )
    assert embedder.embed(TEXTS).dtype == "float32"
    assert keras.tree.flatten(embedder.output)[0].dtype == "float32"

"""The backbone compared with transformers' BertModel, whose code shares nothing with ours."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import gradients, numpy, random_inputs, short_error
from tests.theirs import assert_same_gradients, saved_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CASES = {
    "gelu, 1 head": {},
    "gelu_new, 2 heads": {"hidden_act": "gelu_new", "num_attention_heads": 2},
    "relu, 4 heads, one segment": {"hidden_act": "relu", "num_attention_heads": 4, "type_vocab_size": 1},
    "gelu_pytorch_tanh, 12 heads": {"hidden_act": "gelu_pytorch_tanh", "num_attention_heads": 12, "hidden_size": 48},
    "epsilon 1e-2, 12 heads, 512 positions": {
        "layer_norm_eps": 1e-2,
        "num_attention_heads": 12,
        "hidden_size": 96,
        "max_position_embeddings": 512,
    },
    "4 layers, 128 positions": {"num_hidden_layers": 4, "max_position_embeddings": 128, "num_attention_heads": 3},
}


def reference(tmp_path, **options):
    return saved_model("BertModel", tmp_path, **{"num_attention_heads": 1, "attn_implementation": "eager", **options})


def run_reference(model, inputs):
    with torch.no_grad():
        outputs = model(
            torch.tensor(inputs["token_ids"]).long(),
            torch.tensor(inputs["padding_mask"]).long(),
            torch.tensor(inputs["segment_ids"]).long(),
            output_hidden_states=True,
            output_attentions=True,
        )
    named = {"sequence_output": outputs.last_hidden_state, "pooled_output": outputs.pooler_output}
    for i, state in enumerate(outputs.hidden_states):
        named[f"hidden_states/{i}"] = state
    for i, scores in enumerate(outputs.attentions):
        named[f"attention_scores/{i}"] = scores
    return {name: tensor.double().numpy() for name, tensor in named.items()}


def run_ours(backbone, inputs):
    outputs = backbone.extractor(hidden_states=True, attention_scores=True)(inputs)
    named = {name: outputs[name] for name in ("sequence_output", "pooled_output")}
    for kind in ("hidden_states", "attention_scores"):
        named.update({f"{kind}/{i}": tensor for i, tensor in enumerate(outputs[kind])})
    return {name: numpy(tensor) for name, tensor in named.items()}


@pytest.mark.parametrize("case", CASES)
def test_outputs(case, tmp_path):
    model = reference(tmp_path, **CASES[case])
    length = model.config.max_position_embeddings
    inputs = random_inputs(3, length, 90, model.config.type_vocab_size)
    backbone = kbz.BertBackbone.from_preset(tmp_path)
    ours, fused, theirs = run_ours(backbone, inputs), backbone(inputs), run_reference(model, inputs)
    exact = run_reference(model.double(), inputs)
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        tolerance = max(5e-6, 2 * np.abs(expected - exact[name]).max())
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=tolerance, err_msg=name)
        if name in fused:
            np.testing.assert_allclose(numpy(fused[name]), expected, rtol=0, atol=tolerance, err_msg=name)


def test_gradients(tmp_path):
    model = reference(tmp_path, num_attention_heads=4)
    inputs = random_inputs(3, 20, 90)
    rng = np.random.default_rng(2)
    weights = {"sequence_output": rng.normal(size=(3, 20, 24)) / 60, "pooled_output": rng.normal(size=(3, 24))}
    weights = {name: weight.astype("float32") for name, weight in weights.items()}
    backbone = kbz.BertBackbone.from_preset(tmp_path)

    def weighted_sum(outputs):
        return sum(keras.ops.sum(outputs[name] * keras.ops.convert_to_tensor(weights[name])) for name in weights)

    ours = gradients(backbone, inputs, weighted_sum)
    model.train()
    outputs = model(
        torch.tensor(inputs["token_ids"]).long(),
        torch.tensor(inputs["padding_mask"]).long(),
        torch.tensor(inputs["segment_ids"]).long(),
    )
    loss = (outputs.last_hidden_state * torch.tensor(weights["sequence_output"])).sum()
    (loss + (outputs.pooler_output * torch.tensor(weights["pooled_output"])).sum()).backward()
    assert_same_gradients(ours, model, prefix="")


def test_real_checkpoint(minilm):
    texts = ["The cat sat on the mat.", "Quarterly revenue rose by 12% to $3.4bn, the company said on Tuesday."]
    tokenizer = kbz.BertTokenizer(minilm / "vocab.txt")
    inputs = kbz.BertPreprocessor(tokenizer)((texts, texts[::-1]))
    model = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()
    backbone = kbz.BertBackbone.from_preset(minilm)
    assert (backbone.load_report.fresh, backbone.load_report.unused) == ((), ())
    ours, theirs = run_ours(backbone, inputs), run_reference(model, inputs)
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "field, value",
    [
        ("position_embedding_type", "relative_key"),
        ("add_cross_attention", True),
        ("model_type", "roberta"),
        ("hidden_act", "mish"),
    ],
)
def test_configs_that_would_compute_something_else_are_refused(field, value, tmp_path):
    from keras_bert_zoo.json_files import read_json, write_json

    reference(tmp_path)
    path = tmp_path / "config.json"
    write_json(path, {**read_json(path), field: value})
    with short_error("activation" if field == "hidden_act" else field, repr(value)):
        kbz.BertBackbone.from_preset(tmp_path)

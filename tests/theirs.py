"""transformers' models to compare with, whose code shares nothing with ours."""

import numpy as np
import pytest

from keras_bert_zoo.checkpoints.huggingface_tensors import split_tensors


def saved_model(name, path, scale=0.1, **options):
    """Make one of their models with random weights, including biases and LayerNorm, and save it where ours reads it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 90, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    model = getattr(transformers, name)(transformers.BertConfig(**{**sizes, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    model.save_pretrained(path)
    return model


def run_theirs(model, inputs, **labels):
    """Return their outputs for our inputs; `labels` have their names."""
    import torch

    tensors = (torch.tensor(inputs[name]).long() for name in ("token_ids", "padding_mask", "segment_ids"))
    arrays = {name: np.asarray(values) for name, values in labels.items()}
    numbers = {name: array.astype("int64") if array.dtype.kind == "i" else array for name, array in arrays.items()}
    return model(*tensors, **{name: torch.tensor(array) for name, array in numbers.items()})


def assert_same_gradients(ours, model, prefix="bert."):
    """Compare gradients by our paths with those that a backward pass has left in their model."""
    ours, theirs = split_tensors(ours, prefix), dict(model.named_parameters())
    assert set(ours) == set(theirs)
    for name, parameter in theirs.items():
        expected = parameter.grad.numpy()
        if name.endswith("word_embeddings.weight"):
            # Row 0 is padding, for which PyTorch leaves out what the input table adds.
            ours[name][0] = expected[0] = 0
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-5, err_msg=name)

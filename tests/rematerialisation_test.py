"""Encoder blocks within `keras.RematScope` train in the same way, including dropout."""

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from tests.helpers import LABELS, SHALLOW, TEXTS, TINY, gradients, numpy, random_inputs, randomise, slow_on


def trained(scope, tokenizer):
    keras.utils.set_random_seed(3)
    with scope:
        backbone = kbz.BertBackbone(**SHALLOW)
    classifier = kbz.BertTextClassifier(backbone, num_classes=3, preprocessor=kbz.BertPreprocessor(tokenizer, 16))
    calls = []
    norm = backbone.encoder_layers[0].attention_norm
    call = norm.call
    norm.call = lambda *arguments, **options: (calls.append(1), call(*arguments, **options))[1]
    classifier.compile(keras.optimizers.SGD(0.1))
    keras.utils.set_random_seed(4)
    arrays = classifier.preprocessor(TEXTS)
    losses = classifier.fit(arrays, np.array(LABELS), batch_size=6, epochs=3, verbose=0).history["loss"]
    return losses, classifier.get_weights(), len(calls)


def test_training_is_the_same_and_computes_again(tokenizer):
    losses, weights, calls = trained(keras.RematScope(None), tokenizer)
    names = ["encoder_layer_0"]
    again_losses, again, again_calls = trained(keras.RematScope("list_of_layers", layer_names=names), tokenizer)
    assert len(set(losses)) == 3
    np.testing.assert_allclose(again_losses, losses, rtol=1e-5)
    for plain, recomputed in zip(weights, again, strict=True):
        np.testing.assert_allclose(recomputed, plain, atol=1e-5)
    if keras.backend.backend() != "jax":  # JAX traces a block once, and computes it again in the program.
        assert again_calls > calls


def test_gradients_at_masked_tokens_are_the_same():
    """The last block takes their positions."""
    inputs = {**random_inputs(), "mask_positions": np.array([[0, 8], [1, 0], [0, 1]], "int32")}
    names = [f"encoder_layer_{i}" for i in range(TINY["num_layers"])]
    grads = []
    for scope in (keras.RematScope(None), keras.RematScope("list_of_layers", layer_names=names)):
        with scope:
            model = randomise(kbz.BertMaskedLM(kbz.BertBackbone(**TINY, pooler=False)))
        grads.append(gradients(model, inputs, lambda outputs: keras.ops.sum(keras.ops.square(outputs["mlm"]))))
    plain, again = grads
    assert plain.keys() == again.keys()
    assert all(np.abs(grad).max() > 0 for grad in plain.values())
    for path, grad in plain.items():
        np.testing.assert_allclose(again[path], grad, rtol=1e-4, atol=1e-4, err_msg=path)


@slow_on("tensorflow")
def test_frozen_weights_stay_to_the_bit_in_half_precision(tokenizer):
    """Autocast reads them rounded."""
    with keras.RematScope("list_of_layers", layer_names=[f"encoder_layer_{i}" for i in range(TINY["num_layers"])]):
        backbone = kbz.BertBackbone(**TINY, dtype="mixed_bfloat16")
    preprocessor = kbz.BertPreprocessor(tokenizer, 16)
    classifier = randomise(kbz.BertTextClassifier(backbone, num_classes=3, preprocessor=preprocessor))
    backbone.enable_lora(2)
    frozen = [(weight, numpy(weight).copy()) for weight in backbone.non_trainable_weights]
    before = numpy(backbone.encoder_layers[0].attention.qkv.lora_kernel_b).copy()
    classifier.compile(keras.optimizers.SGD(0.1))
    classifier.fit(classifier.preprocessor(TEXTS), np.array(LABELS), verbose=0)
    assert np.abs(numpy(backbone.encoder_layers[0].attention.qkv.lora_kernel_b) - before).max() > 0
    assert len(frozen) > 20
    for weight, value in frozen:
        np.testing.assert_array_equal(numpy(weight), value, err_msg=weight.path)


@pytest.mark.parametrize("mode", ["full", "activations", "larger_than"])
def test_other_modes_are_refused(mode):
    with keras.RematScope(mode), pytest.raises(ValueError, match=f"`keras.RematScope`.*mode='{mode}'"):
        kbz.BertBackbone(**TINY)

"""How much work a step is, beside published counts: BERT with the masked-LM head at the masked positions only."""

import pytest

from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.training.devices import peak_of
from keras_bert_zoo.training.speed import peak_flops, training_flops


@pytest.mark.parametrize(
    "preset, length, predictions, flops",
    [
        ("bert_base", 128, 20, 6.99e10),
        ("bert_base", 512, 76, 3.01e11),
        ("bert_large", 128, 20, 2.41e11),
        ("bert_large", 512, 76, 1.02e12),
    ],
)
def test_operations_of_a_training_step(preset, length, predictions, flops):
    architecture = {**load_preset(preset, load_weights=False).backbone, "pooler": True}
    assert training_flops(architecture, length, predictions) == pytest.approx(flops, rel=5e-3)


def test_a_peak_is_measured():
    assert 1e8 < peak_flops("float32") < 1e16


@pytest.mark.parametrize(
    "name, peak",
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-PCIE-16GB", 112e12),
        ("NVIDIA L40S", None),
        ("TPU v5 lite", 197e12),
        ("TPU v3", None),
        ("", None),
    ],
)
def test_peaks_of_data_sheets(name, peak):
    assert peak_of(name) == peak

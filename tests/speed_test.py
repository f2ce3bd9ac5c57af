"""How fast a run is, by scripted clocks, and how fast the device could be."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo.pretraining import progress
from keras_bert_zoo.pretraining.progress import Speed
from keras_bert_zoo.training import speed
from keras_bert_zoo.training.devices import peak_of
from keras_bert_zoo.training.distribution import device_count
from keras_bert_zoo.training.speed import peak_flops, training_flops
from tests.helpers import TINY


def scripted(monkeypatch, module, readings):
    """Make the module's clock give these readings, one after another."""
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=iter(readings).__next__))


@pytest.mark.parametrize(
    "seconds, fastest",
    [([0.125] * 7 + [0.0625, 0.125, 0.125, 0.01], 0.0625), ([0.5, 0.75, 0.5, 0.25, 0.01], 0.25), ([5, 4, 1], 4)],
)
def test_a_peak_is_that_of_the_fastest_product(monkeypatch, seconds, fastest):
    """There are ten products, or as many as two seconds hold, or two; they begin ten seconds apart."""
    readings = [reading for i, each in enumerate(seconds) for reading in (10 * i, 10 * i + each)]
    scripted(monkeypatch, speed, readings)
    monkeypatch.setattr(speed, "_device_name", lambda: "")
    monkeypatch.setattr(speed, "peak_of", lambda name: 3.0)  # Of half precision.
    assert peak_flops("float32") == 2 * 1024**3 / fastest
    assert [peak_flops(dtype) for dtype in ("float16", "bfloat16")] == [3.0, 3.0]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX multiplies float32 for a product of bfloat16.")
def test_a_peak_in_bfloat16_is_that_of_its_own_products():
    product = speed._product(keras.ops.cast([[1.0, 2.0], [3.0, 4.0]], "bfloat16"))
    assert product.dtype == "float32"
    np.testing.assert_array_equal(product, [[7, 10], [15, 22]])


@pytest.mark.parametrize("peak", [1e9, None])
def test_speed_of_all_batches_of_an_epoch(peak, monkeypatch):
    """The third batch, counted as a fourth if an execution has two, is done four seconds after the epoch begins."""
    monkeypatch.setattr(progress, "peak_flops", lambda dtype: peak)
    monkeypatch.setattr(progress, "device_count", lambda model: 2)
    scripted(monkeypatch, progress, [100.0, 101.0, 104.0])
    model = kbz.BertPretrainer(kbz.BertBackbone(**TINY))
    callback = Speed(model, SimpleNamespace(batch_size=8, mean_length=10.0, mean_predictions=2.0))
    flops = 8 * training_flops(model.backbone.architecture, 10.0, 2.0)
    callback.set_params({"steps": 3})
    logs = {}
    callback.on_epoch_begin(0)
    for batch, rate in ((0, 1.0), (3, 0.75)):
        callback.on_train_batch_end(batch, logs)
        known = {"mfu": pytest.approx(flops * rate / 2e9)} if peak else {}
        assert logs == {"tokens_per_second": 80 * rate, **known}


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="Its devices are those of a strategy.")
def test_devices_are_those_of_the_whole_mesh(monkeypatch):
    """Also where two of them share a copy of the model."""
    mesh = SimpleNamespace(shape=(4, 2), axis_names=["batch", "model"])
    laid = SimpleNamespace(device_mesh=mesh, batch_dim_name="batch")
    monkeypatch.setattr("keras.distribution.distribution", lambda: laid)
    assert device_count(None) == 8


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="The other backends know their devices.")
@pytest.mark.parametrize(
    "kind, dtype, peak",
    [
        ("v4-8", "bfloat16", 275e12),
        ("v5litepod-8", "bfloat16", 197e12),
        ("v5p-128", "bfloat16", 459e12),
        ("v6e-8", "bfloat16", 918e12),
        ("v6e-8", "float32", None),
        ("v3-8", "bfloat16", None),  # Two replicas a chip.
        ("v2-8", "bfloat16", None),
        (None, "bfloat16", None),
    ],
)
def test_the_peak_of_a_tpu_on_tensorflow(kind, dtype, peak, monkeypatch):
    """No matmul is timed: it would run on the host."""
    import tensorflow as tf

    monkeypatch.setattr(tf.distribute, "TPUStrategy", type(tf.distribute.get_strategy()))
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    if kind:
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", kind)
    assert peak_flops(dtype) == peak


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
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("Tesla T4", 65e12),
        # JAX and libtpu have two names for each.
        ("TPU v5 lite", 197e12),
        ("TPU v5e", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("TPU v6e", 918e12),
        ("TPU v4", 275e12),
        ("TPU v4 lite", None),
        ("TPU v3", None),
        ("", None),
    ],
)
def test_peaks_of_data_sheets(name, peak):
    assert peak_of(name) == peak

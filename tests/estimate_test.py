"""The estimate of pre-training against published runs, counted weights and bytes, and a step worked by hand."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_zoo as kbz
from keras_bert_zoo import cli
from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.pretraining import cost, estimate
from keras_bert_zoo.pretraining.estimate import Estimate
from keras_bert_zoo.pretraining.estimate import table as estimate_table
from keras_bert_zoo.training.devices import DEVICES, Device
from keras_bert_zoo.training.speed import training_flops
from tests.helpers import TINY

pytestmark = pytest.mark.usefixtures("products_of_half_precision")
torch_only = pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch says what it keeps")
ONE_LAYER = {
    "vocabulary_size": 10, "num_layers": 1, "num_heads": 2, "hidden_dim": 4, "intermediate_dim": 8,
    "max_sequence_length": 8,
}  # fmt: skip


# --- Published


@pytest.mark.parametrize("preset, count", [("bert_base", 110_106_428), ("bert_large", 336_226_108)])
def test_weights_are_those_of_transformers_bert_for_pretraining(preset, count):
    assert estimate(preset, "a100").parameters == count


def test_weights_are_those_of_a_model():
    model = kbz.BertPretrainer(kbz.BertBackbone(**TINY))
    counted = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    assert cost.parameters(model.backbone.architecture) == counted


@pytest.mark.parametrize(
    "preset, phase, flops",
    [
        ("bert_base", (128, 20), 6.99e10),
        ("bert_base", (512, 76), 3.01e11),
        ("bert_large", (128, 20), 2.41e11),
        ("bert_large", (512, 76), 1.02e12),
    ],
)
def test_flops_of_a_sequence(preset, phase, flops):
    run = estimate(preset, "a100", schedule=[(*phase, 8, 3)])
    assert run.flops == pytest.approx(24 * flops, rel=5e-3)


@pytest.mark.parametrize(
    "device, devices, schedule, minutes",
    [
        ("tpu_v3", 1024, "lamb", 76.2),  # You et al. 2019, table 1
        ("tpu_v3", 16, [(128, 20, 512, 900_000), (512, 76, 512, 100_000)], 81.4 * 60),  # The share is from this run.
        ("a100", 1, [(128, 20, 256, 580)], 256 / 60),  # NVIDIA: 580 sequences a second
        ("v100", 1, [(128, 20, 64, 206)], 64 / 60),
    ],
)
def test_published_runs_of_bert_large(device, devices, schedule, minutes):
    assert estimate("bert_large", device, devices, schedule).seconds / 60 == pytest.approx(minutes, rel=0.1)


RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def test_the_cpu_s_share_is_that_of_the_measured_step():
    rates = json.loads((RESULTS / "pretraining_step.json").read_text())["base, 128/20, float32"][
        "keras_bert_zoo, torch"
    ]
    seconds = estimate("bert_base", "cpu", schedule=[(128, 20, 8, 1)]).seconds
    assert 8 / seconds == pytest.approx(statistics.median(rates), rel=0.01)


def test_the_h200_s_share_and_memory_are_those_of_the_measured_step():
    """The kernels with attention dropout keep no probabilities, which would take as much again."""
    lines = (RESULTS / "gpu_pretraining.jsonl").read_text().splitlines()
    measured = {(row["n"], row["title"]): row for row in map(json.loads, lines) if "error" not in row}
    for name, preset, phase in (
        ("base, 128/20", "bert_base", (128, 20, 256, 1)),
        ("base, 512/76", "bert_base", (512, 76, 64, 1)),
        ("large, 512/76", "bert_large", (512, 76, 32, 1)),
    ):
        run = estimate(preset, "h200", schedule=[phase])
        row = measured[name, "keras_bert_zoo, PyTorch, compiled"]
        assert run.bytes == pytest.approx(row["peak_bytes"], rel=0.08)
    row = measured["base, 128/20", "keras_bert_zoo, JAX"]
    seconds = estimate("bert_base", "h200", schedule=[(128, 20, 256, 1)]).seconds
    assert seconds == pytest.approx(statistics.median(row["seconds"]) / row["steps"], rel=0.01)


def test_the_hosts_rate_is_that_of_the_measured_batches():
    rows = json.loads((RESULTS / "scaling_tensorflow.json").read_text())["rows"]
    measured = statistics.median(row["host_tokens_per_second"] for row in rows if row["sweep"] == "corpus")
    (step,) = estimate("bert_base", "a100", schedule=[(128, 20, 256, 1)]).steps
    assert 256 * 128 / step.host == pytest.approx(measured, rel=0.01)


# --- By hand


def test_a_step_by_hand():
    """Four devices, linked in twos."""
    device = Device(peak=2.0, memory=1e6, bandwidth=4.0, link=8.0, group=2, network=16.0, hosted=2)
    architecture = {**ONE_LAYER, "num_segments": 2, "attention_dropout": 0.0, "pooler": True}
    # (10 + 8 + 2 + 2) rows of 4; attention 4*20 + 8; feed-forward 64 + 12 + 8; pooler 20; heads 16 + 12 + 10 + 8 + 2
    count = 88 + 88 + 84 + 20 + 48
    step = cost.step_cost(architecture, 4, 1, 8, device, devices=4, efficiency=0.5)
    # Encoder: 4 tokens x (64 + 64 + 2*4*4); head: 16 + 40; pooler: 16. Two operations each, three passes.
    flops = 6 * (4 * 160 + 56 + 16)
    assert step.flops == 8 * flops
    assert step.compute == 2 * flops
    assert (step.share, step.examples) == (2, 2)
    assert step.weights == count * (4 + 4 + 8 + 2)
    # Block, the last: 4 tokens x 2 bytes x 4*4 and, of [CLS] and the masked token, 2 x (2 bytes x (2*4 + 2*8) + 2*4*4
    # + 2*4 + 2 heads x 4 probabilities x (4 + 2)); embeddings: 4 tokens x 4 x 5; logits: 10 x (2 + 8)
    assert step.activations == 2 * (4 * 32 + 2 * 136 + 80 + 100)
    assert step.sent == 2 * 3 / 4 * 4 * count
    assert step.memory == (8 * 4 + 4 + 2) * count / 4
    # Half of the gradients to the neighbour, twice; then half of that half to the other group, twice.
    assert step.network == 4 * count / 8 + 4 * count / 2 / 16
    assert step.seconds == step.compute + step.memory + step.network
    assert step.bound == "compute"


def test_the_pooler_counts_in_pretraining_whatever_the_model_has():
    with_it, without = (
        estimate({**ONE_LAYER, "pooler": pooler}, "a100", schedule=[(8, 8, 8, 1)]) for pooler in (True, False)
    )
    assert with_it == without
    architecture = {**ONE_LAYER, "pooler": False}
    assert with_it.flops == 8 * (training_flops(architecture, 8, 8) + 6 * 4 * 4)


def test_what_one_device_and_an_odd_one_need():
    """One sends nothing, whatever it is linked to; a host that is not full feeds what it has."""
    device = Device(peak=2.0, memory=1e6, bandwidth=4.0, link=8.0, group=8, network=16.0, hosted=2)
    architecture = {**ONE_LAYER, "num_segments": 2, "attention_dropout": 0.0, "pooler": True}
    one, three = (cost.step_cost(architecture, 4, 1, 6, device, devices, efficiency=0.5) for devices in (1, 3))
    assert (one.sent, one.network) == (0, 0)
    assert one.host == 2 * three.host
    assert three.network == pytest.approx(2 * 2 / 3 * 4 * 328 / 8)


def test_what_does_not_fit_is_cut():
    architecture = {**ONE_LAYER, "num_segments": 2, "attention_dropout": 0.0, "pooler": True}
    weights, example = 328 * (18 + 4), 4 * 32 + 2 * 136 + 80 + 100

    def at(memory):
        device = Device(1.0, memory, 1.0, 1.0, 8, 1.0, 8)
        return cost.step_cost(architecture, 4, 1, 16, device, 1, 1.0)

    assert at(weights + 7 * example).examples == 6  # Three parts, of at most seven.
    assert at(weights + 7 * example).weights == weights
    assert at(weights + example).examples == 1
    with pytest.raises(ValueError, match="must fit into 0 GB"):
        at(weights + example - 1)


def test_rematerialisation_computes_a_forward_pass_more():
    plain, again = (
        estimate("bert_base", "a100", schedule=[(512, 76, 64, 1)], rematerialise=on).steps[0] for on in (False, True)
    )
    assert again.flops == plain.flops
    assert again.compute / plain.compute == pytest.approx(1 + 1 / 3, abs=0.03)  # The heads are not computed again.
    assert again.activations < plain.activations / 3.5


@pytest.mark.parametrize("schedule, bounds", [("paper", ["compute", "compute", "network"]), ("lamb", ["compute"] * 3)])
def test_small_batches_wait_for_the_network(schedule, bounds):
    assert [estimate("bert_large", "a100", n, schedule).bound for n in (1, 8, 128)] == bounds


def test_devices_beyond_the_batch_stand_idle():
    """On 1,024 devices, the paper's batch of 256 takes what it takes on 256, of an example each."""
    all_work, most_idle = (estimate("bert_base", "a100", devices) for devices in (256, 1024))
    assert most_idle.devices == 1024
    assert most_idle.steps == all_work.steps
    assert most_idle.seconds == all_work.seconds
    step = most_idle.steps[0]
    assert (step.devices, step.share) == (256, 1)
    assert step.sent == pytest.approx(2 * 255 / 256 * 4 * 110_106_428)
    assert step.compute == pytest.approx(6.99e10 / (312e12 * 0.45), rel=5e-3)
    rows = estimate_table([all_work, most_idle]).splitlines()[2:4]
    assert [row.split(" | ")[0] for row in rows] == ["| 256", "| 1,024 (768 idle)"]
    assert rows[0].split(" | ")[1:] == rows[1].split(" | ")[1:]


def test_a_phase_of_larger_batches_wakes_them():
    run = estimate("bert_tiny", "a100", 512, [(128, 20, 256, 1), (128, 20, 1024, 1)])
    assert [(step.devices, step.share) for step in run.steps] == [(256, 1), (512, 2)]


def test_the_bound_is_what_the_whole_run_waits_for():
    """Each phase alone is bound by the products or the network; together the network takes longer."""
    phases = [(128, 20, 256, 1000), (512, 76, 256, 900)]
    alone = [estimate("bert_base", "a100", 64, [phase]) for phase in phases]
    assert [run.bound for run in alone] == ["network", "compute"]
    assert alone[1].seconds > alone[0].seconds
    assert estimate("bert_base", "a100", 64, phases).bound == "network"
    assert estimate("bert_base", "a100", 64, phases).bytes == max(run.bytes for run in alone)


def test_hosts_are_waited_for_only_beyond_the_devices():
    """Here the hosts take longer than any one part of the devices, but not than all of them."""
    runs = [estimate("bert_small", "h100", devices) for devices in (4, 16)]
    assert all(run.steps[0].host > max(run.steps[0].compute, run.steps[0].network) for run in runs)
    assert [run.bound for run in runs] == [run.steps[0].bound for run in runs] == ["compute", "network"]
    phases = [(128, 20, 256, 50), (512, 20, 256, 10)]
    short, long = (estimate("bert_mini", "h100", 64, [phase]) for phase in phases)
    assert (short.bound, long.bound, estimate("bert_mini", "h100", 64, phases).bound) == ("network", "host", "network")
    assert long.seconds == pytest.approx(10 * long.steps[0].host)
    assert long.steps[0].waits == {"compute": 0, "memory": 0, "network": 0, "host": long.steps[0].host}


# --- Counted


@torch_only
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("attention_dropout", [0.1, 0.0])
def test_activations_are_what_pytorch_keeps(dtype, attention_dropout):
    for rematerialise in (False, True):
        kept, architecture = _kept_by_pytorch(dtype, attention_dropout, rematerialise)
        precision = 4 if dtype == "float32" else 2
        formula = cost.activation_bytes(architecture, 64, 10, precision, rematerialise)
        if rematerialise:  # One block is computed again when the forward pass is over.
            two, one = ({**architecture, "num_layers": n} for n in (2, 1))
            formula -= cost.activation_bytes(two, 64, 10, precision) - cost.activation_bytes(one, 64, 10, precision)
        assert 0.8 < kept / formula < 1.25


def _kept_by_pytorch(dtype, attention_dropout, rematerialise):
    """Return the bytes of an example, from a batch of four less one of two, so that no weight's copy counts."""
    import torch

    names = [f"encoder_layer_{i}" for i in range(3)] if rematerialise else []
    with keras.RematScope("list_of_layers", layer_names=names):
        backbone = kbz.BertBackbone(300, 3, 2, 128, 512, attention_dropout=attention_dropout, dtype=dtype)
    model = kbz.BertPretrainer(backbone)

    def kept(count):
        storages = {}

        def keep(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor  # Held, so that no address is used twice.
            return tensor

        ids, zeros = torch.ones((count, 64), dtype=torch.int32), torch.zeros((count, 64), dtype=torch.int32)
        inputs = {"token_ids": ids, "segment_ids": zeros, "padding_mask": ids, "mask_positions": zeros[:, :10]}
        targets = {"mlm": zeros[:, :10], "nsp": zeros[:, 0]}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            outputs = model(inputs, training=True)
            sum(
                keras.losses.sparse_categorical_crossentropy(y, outputs[name], True).sum()
                for name, y in targets.items()
            )
        return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())

    return (kept(4) - kept(2)) / 2, backbone.architecture


# --- From the console, and refusals


def test_a_row_of_the_table_by_hand():
    """A step of two seconds; columns as in the first line, of the first phase but for the memory and the run."""
    first = cost.StepCost(
        flops=1e15, weights=7e9, activations=3e9, devices=1024, share=4096, examples=32, sent=1.234e9,
        compute=1.0, memory=0.2, network=0.8, host=1.4,
    )  # fmt: skip
    second = replace(first, compute=5.0, sent=9e9, share=2048, examples=16)
    run = Estimate(1024, 10, (first, second), flops=1e18, bytes=12.34e9, seconds=5_402_000, bound="network")
    header, _, row, _, last = estimate_table([run]).splitlines()
    cells = (line.strip("| ").split(" | ") for line in (header, row))
    assert dict(zip(*cells, strict=True)) == {
        "devices": "1,024", "examples on each, at once": "4,096, 32", "GB on each": "12.3", "GB sent per step": "1.23",
        "compute": "50%", "update": "10%", "all-reduce": "40%", "host": "70%", "step, s": "2", "run, hours": "1,500.6",
        "bound": "network",
    }  # fmt: skip
    assert last == "The network is the first bottleneck, at 1,024 devices."


def test_table_on_the_console(capsys):
    arguments = "estimate --preset bert_large --device a100 --devices 256 64 1".split()
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    # 256 * (900,000 * 2.4064e11 + 100,000 * 1.0198e12), as in `test_flops_of_a_sequence`.
    assert out.startswith("bert_large, 336,226,108 weights, 8.15e+19 FLOPs, on a100:\n\n")
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["| 256", "| 64", "| 1"]
    assert [row[-1] for row in rows] == ["network |", "network |", "compute |"]
    assert out.endswith("The network is the first bottleneck, at 64 devices.\n")


def test_options_on_the_console(capsys):
    options = "--schedule lamb --efficiency 0.3 --rematerialise"
    assert cli.main(f"estimate --preset bert_tiny --device h200 {options}".split()) == 0
    expected = estimate_table([estimate("bert_tiny", "h200", 1, "lamb", 0.3, True)])
    assert capsys.readouterr().out.endswith(f"{expected}\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"device": "a1000"}, "`device` must be one of .*h100.* Received: device='a1000'"),
        ({"device": ["a100"]}, r"`device` must be one of .*h100.* Received: device=\['a100'\]"),
        ({"rematerialise": "no"}, "`rematerialise` must be True or False. Received: rematerialise='no'"),
        ({"device": "tpu_v4"}, "`efficiency` must be given .* Received: device='tpu_v4'"),
        ({"efficiency": 0.0}, "`efficiency` must be a positive number"),
        ({"efficiency": 45}, "`efficiency` must be a share of the peak, at most 1. Received: efficiency=45"),
        ({"devices": 0}, "`devices` must be a positive integer"),
        ({"devices": 3}, "`devices` must divide each batch, or exceed it. Received: devices=3, a batch of 256"),
        ({"schedule": "fast"}, "`schedule` must be phases or one of paper, lamb. Received: schedule='fast'"),
        ({"schedule": []}, "`schedule` must have a phase"),
        ({"schedule": 3}, "`schedule` must be a list of phases. Received: schedule=3"),
        (
            {"schedule": [(128, 20, 256, 1), (128, 20, 256)]},
            r"batch_size, steps\). Received: schedule\[1\]=\(128, 20, 256",
        ),
        ({"schedule": (128, 20, 256, 1)}, r"`schedule` must hold phases \(sequence_length, .* schedule\[0\]=128"),
        (
            {"model": {"num_layers": 2, "num_heads": 2}},
            "`model` must have all of .* without vocabulary_size, hidden_dim",
        ),
        ({"model": {**ONE_LAYER, "num_layers": "2"}}, "`num_layers` must be a positive integer"),
        ({"schedule": [(513, 20, 8, 1)]}, "A phase must have at most 512 tokens"),
        ({"schedule": [(20, 21, 8, 1)]}, "no more predictions than tokens. Received: .20, 21, 8, 1"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        estimate(**{"model": "bert_base", "device": "a100", **arguments})


# As printed in the sources that devices.py names: TFLOP/s, GB, GB/s, and GB/s of NVLink or PCIe in both directions.
GPUS = {
    "h200": (989, 141, 4800, 900), "h100": (989, 80, 3350, 900), "a100": (312, 80, 2039, 600),
    "v100": (125, 32, 900, 300), "l4": (121, 24, 300, 64), "t4": (65, 16, 320, 32),
}  # fmt: skip
# TFLOP/s, GB, GB/s, TB/s of a pod's all-reduce, its chips, and chips of a host.
TPUS = {
    "tpu_v3": (123, 32, 900, 340, 1024, 4), "tpu_v4": (275, 32, 1200, 1100, 4096, 4),
    "tpu_v5e": (197, 16, 819, 51.2, 256, 8), "tpu_v5p": (459, 95, 2765, 0.6 * 6144, 6144, 4),
    "tpu_v6e": (918, 32, 1638, 102.4, 256, 8),
}  # fmt: skip
# Gb/s of a device to others far away. None are printed for v3 and v4.
NETWORKS = {
    "h200": 400, "h100": 400, "a100": 200, "v100": 50, "l4": 12.5, "t4": 12.5,
    "tpu_v5e": 25, "tpu_v5p": 50, "tpu_v6e": 100,
}  # fmt: skip


def test_devices_are_those_of_the_data_sheets():
    printed = {name: (*numbers, both / 2, 8, 8) for name, (*numbers, both) in GPUS.items()}
    printed |= {
        name: (*numbers, 1000 * pod / chips, chips, hosted) for name, (*numbers, pod, chips, hosted) in TPUS.items()
    }
    assert {*printed, "cpu"} == set(DEVICES)
    for name, (*numbers, group, hosted) in printed.items():
        device = DEVICES[name]
        found = [device.peak / 1000, device.memory, device.bandwidth, device.link]
        assert np.divide(found, 1e9) == pytest.approx(numbers, rel=0.01), name
        assert (device.group, device.hosted, device.precision) == (group, hosted, 2), name
    assert {name: DEVICES[name].network * 8e-9 for name in NETWORKS} == pytest.approx(NETWORKS, rel=0.01)


def test_every_device_takes_an_estimate():
    architecture = load_preset("bert_tiny", load_weights=False).backbone
    for name, device in DEVICES.items():
        run = estimate(architecture, name, schedule=[(128, 20, 256, 10)], efficiency=0.5)
        (step,) = run.steps
        assert step.compute == pytest.approx(step.flops / (device.peak * 0.5))
        assert run.seconds == pytest.approx(10 * step.seconds)

"""Estimate pre-training on other machines: FLOPs, memory, communication, time, and the first bottleneck."""

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bert_zoo.checks import check_flag, check_positive, check_positive_int
from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.pretraining.cost import PARTS, StepCost, parameters, step_cost
from keras_bert_zoo.text.texts import is_list
from keras_bert_zoo.training.devices import DEVICES

Phase = tuple[int, int, int, int]
"""Sequence length, predictions, batch size, steps."""

SCHEDULES: dict[str, tuple[Phase, ...]] = {
    # Devlin et al. 2019, A.2, with the predictions of the Model Garden and MLPerf.
    "paper": ((128, 20, 256, 900_000), (512, 76, 256, 100_000)),
    # You et al. 2019, section 4.1: 8,599 steps.
    "lamb": ((128, 20, 65_536, 7_038), (512, 76, 32_768, 1_561)),
}
_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length")


@dataclass(frozen=True)
class Estimate:
    """Cost of pre-training on a number of devices.

    Attributes:
        devices: Number of devices; those beyond the examples of a batch are idle.
        parameters: Number of weights of the model with the pre-training heads.
        steps: A `StepCost` for each phase of the schedule: FLOPs, bytes on a device, bytes sent, seconds of each part.
        flops: Total of the run.
        bytes: Memory on each device in the phase that needs the most.
        seconds: Duration of the run.
        bound: What the run waits for longest: `"compute"`, `"memory"`, `"network"` or `"host"`.
    """

    devices: int
    parameters: int
    steps: tuple[StepCost, ...]
    flops: float
    bytes: float
    seconds: float
    bound: str


def estimate(
    model: str | dict[str, Any],
    device: str,
    devices: int = 1,
    schedule: str | Sequence[Phase] = "paper",
    efficiency: float | None = None,
    rematerialise: bool = False,
) -> Estimate:
    """Estimate the cost of pre-training.

    Every device processes its part of each batch, in smaller parts if memory requires it; devices beyond the examples
    of a batch are idle. The time of a step is the sum of three: its matrix products at a measured fraction of the
    device's peak, the update at its memory bandwidth, and a ring all-reduce of the float32 gradients at the bandwidth
    of the links. If making the batch takes the hosts longer, a step takes that long.

    The fraction was measured on fully loaded devices; it is lower with few examples per device. Latencies are
    ignored. The time is therefore a lower bound where `bound` is not `"compute"`.
    `keras_bert_zoo/training/devices.py` lists the devices' figures and their sources.

    Args:
        model: A preset's name or directory, or `BertBackbone.architecture`.
        device: `"h200"`, `"h100"`, `"a100"`, `"v100"`, `"l4"`, `"t4"`, `"tpu_v3"`, `"tpu_v4"`, `"tpu_v5e"`,
            `"tpu_v5p"`, `"tpu_v6e"` (chips), or `"cpu"`, two cores with AVX-512 in float32.
        devices: Number of devices; must divide each batch or exceed its number of examples.
        schedule: `"paper"`, 256 sequences per step for 900,000 steps at length 128 and 100,000 at 512 (Devlin et al.
            2019, A.2); `"lamb"`, 7,038 steps of 65,536 and 1,561 of 32,768 (You et al. 2019); or a list of phases, each
            `(sequence_length, predictions, batch_size, steps)`.
        efficiency: Fraction of the peak that the products reach; None takes the value measured on such a device.
        rematerialise: Recompute each block for its gradient instead of storing its activations.

    Returns:
        An `Estimate`.

    Raises:
        ValueError: An argument is out of range, no efficiency was measured on the device, or not even one example fits.

    Example:

    ```python
    run = kbz.pretraining.estimate("bert_large", "tpu_v3", devices=1024, schedule="lamb")
    print(f"{run.seconds / 60:.0f} minutes, {run.bytes / 1e9:.1f} GB a chip, {run.bound}")
    ```
    """
    if not isinstance(device, str) or device not in DEVICES:
        raise ValueError(f"`device` must be one of {', '.join(DEVICES)}. Received: device={device!r}")
    check_flag(rematerialise=rematerialise)
    kind = DEVICES[device]
    efficiency = kind.measured if efficiency is None else efficiency
    if efficiency is None:
        raise ValueError(f"`efficiency` must be given if none was measured. Received: device={device!r}")
    check_positive(efficiency=efficiency)
    if efficiency > 1:
        raise ValueError(f"`efficiency` must be a share of the peak, at most 1. Received: efficiency={efficiency}")
    check_positive_int(devices=devices)
    architecture = model if isinstance(model, dict) else load_preset(model, load_weights=False).backbone
    missing = [name for name in _SIZES if name not in architecture]
    if missing:
        raise ValueError(f"`model` must have all of {', '.join(_SIZES)}. Received: one without {', '.join(missing)}")
    check_positive_int(**{name: architecture[name] for name in _SIZES})
    architecture = {"attention_dropout": 0.1, "num_segments": 2, **architecture, "pooler": True}
    phases = _phases(schedule, devices, architecture["max_sequence_length"])
    steps = tuple(
        step_cost(architecture, length, predictions, batch, kind, min(devices, batch), efficiency, rematerialise)
        for length, predictions, batch, _ in phases
    )
    counts = [count for *_, count in phases]
    waits = {part: sum(step.waits[part] * count for step, count in zip(steps, counts, strict=True)) for part in PARTS}
    return Estimate(
        devices,
        parameters(architecture),
        steps,
        flops=sum(step.flops * count for step, count in zip(steps, counts, strict=True)),
        bytes=max(step.weights + step.activations for step in steps),
        seconds=sum(step.seconds * count for step, count in zip(steps, counts, strict=True)),
        bound=max(PARTS, key=waits.__getitem__),
    )


def _phases(schedule: str | Sequence[Phase], devices: int, longest: int) -> Sequence[Phase]:
    if isinstance(schedule, str):
        if schedule not in SCHEDULES:
            raise ValueError(
                f"`schedule` must be phases or one of {', '.join(SCHEDULES)}. Received: schedule={schedule!r}"
            )
        schedule = SCHEDULES[schedule]
    if not is_list(schedule):
        raise ValueError(f"`schedule` must be a list of phases. Received: schedule={reprlib.repr(schedule)}")
    for i, phase in enumerate(schedule):
        if not is_list(phase) or len(phase) != 4:
            raise ValueError(
                "`schedule` must hold phases (sequence_length, predictions, batch_size, steps). "
                f"Received: schedule[{i}]={reprlib.repr(phase)}"
            )
        length, predictions, batch, steps = phase
        check_positive_int(sequence_length=length, predictions=predictions, batch_size=batch, steps=steps)
        if predictions > length or length > longest:
            raise ValueError(
                f"A phase must have at most {longest} tokens, and no more predictions than tokens. Received: {phase}"
            )
        if devices < batch and batch % devices:
            raise ValueError(
                f"`devices` must divide each batch, or exceed it. Received: devices={devices}, a batch of {batch}"
            )
    if not len(schedule):
        raise ValueError("`schedule` must have a phase. Received: none")
    return schedule


def table(estimates: Iterable[Estimate]) -> str:
    """Return a Markdown table with one row per estimate, and a sentence on the bottleneck of the fewest devices.

    The parts of a step are those of the first phase, the bound is that of the whole run. Each row also shows how many
    devices have no example in the first phase.
    """
    estimates = list(estimates)
    lines = [
        "| devices | examples on each, at once | GB on each | GB sent per step | compute | update | all-reduce | host "
        "| step, s | run, hours | bound |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in estimates:
        step = each.steps[0]
        shares = " | ".join(
            f"{part / step.seconds:.0%}" for part in (step.compute, step.memory, step.network, step.host)
        )
        idle = f" ({each.devices - step.devices:,} idle)" if each.devices > step.devices else ""
        lines.append(
            f"| {each.devices:,}{idle} | {step.share:,}, {step.examples:,} | {each.bytes / 1e9:.1f} "
            f"| {step.sent / 1e9:.2f} | {shares} | {step.seconds:.3g} | {each.seconds / 3600:,.1f} | {each.bound} |"
        )
    first = min((each for each in estimates if each.bound != "compute"), key=lambda each: each.devices, default=None)
    last = "The matrix products take the longest throughout."
    if first:
        last = f"The {first.bound} is the first bottleneck, at {first.devices:,} devices."
    return "\n".join([*lines, "", last])

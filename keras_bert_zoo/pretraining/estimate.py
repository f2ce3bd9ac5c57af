"""What pre-training would take on other machines: FLOPs, memory, communication, time, and what is short first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bert_zoo.checks import check_positive, check_positive_int
from keras_bert_zoo.presets import load_preset
from keras_bert_zoo.training.cost import PARTS, StepCost, parameters, step_cost
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
    """Pre-training on a number of devices.

    Attributes:
        devices: So many; those beyond the examples of a batch stand idle.
        parameters: Weights of the model with the heads of pre-training.
        steps: A `StepCost` for each phase of the schedule: FLOPs, bytes on a device, bytes sent, seconds of each part.
        flops: Of the whole run.
        bytes: Memory of the phase that needs the most, on each device.
        seconds: Of the whole run.
        bound: What the run waits for the longest: `"compute"`, `"memory"`, `"network"` or `"host"`.
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
    """Estimate what pre-training takes.

    Every device works on its part of each batch, in smaller parts where memory ends; devices beyond the examples of a
    batch have none and stand idle. A step is the time of its matrix
    products at a measured share of the device's peak, of the update at the bandwidth of its memory, and of a ring's
    all-reduce of the float32 gradients at that of the links, one after the other. The share was measured with full
    devices: with a few examples on each it is lower, and latencies are left out, so that where `bound` is not
    `"compute"` the time is a lower bound. `keras_bert_zoo/training/devices.py` has the devices' figures and their
    sources.

    Args:
        model: A preset's name or directory, or `BertBackbone.architecture`.
        device: `"h200"`, `"h100"`, `"a100"`, `"v100"`, `"l4"`, `"t4"`, `"tpu_v3"`, `"tpu_v4"`, `"tpu_v5e"`,
            `"tpu_v5p"`, `"tpu_v6e"` (chips), or `"cpu"`, two cores with AVX-512 in float32.
        devices: Number of devices; divides each batch, or is more than it has examples.
        schedule: `"paper"`, 256 sequences a step for 900,000 steps at length 128 and 100,000 at 512 (Devlin et al.
            2019, A.2), `"lamb"`, 7,038 steps of 65,536 and 1,561 of 32,768 (You et al. 2019), or phases of your own,
            each `(sequence_length, predictions, batch_size, steps)`.
        efficiency: Share of the peak that the products reach; None takes what was measured on such a device.
        rematerialise: Compute each block again for its gradient, in place of keeping it.

    Returns:
        An `Estimate`.

    Raises:
        ValueError: An argument is out of its range, no share was measured on the device, or not even one example fits.

    Example:

    ```python
    run = kbz.pretraining.estimate("bert_large", "tpu_v3", devices=1024, schedule="lamb")
    print(f"{run.seconds / 60:.0f} minutes, {run.bytes / 1e9:.1f} GB a chip, {run.bound}")
    ```
    """
    if device not in DEVICES:
        raise ValueError(f"`device` must be one of {', '.join(DEVICES)}. Received: device={device!r}")
    kind = DEVICES[device]
    efficiency = kind.measured if efficiency is None else efficiency
    if efficiency is None:
        raise ValueError(f"`efficiency` must be given where none was measured. Received: device={device!r}")
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
    waits = {
        part: sum(getattr(step, part) * count for step, count in zip(steps, counts, strict=True)) for part in PARTS
    }
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
            raise ValueError(f"`schedule` must be phases or one of {', '.join(SCHEDULES)}. Received: {schedule!r}")
        schedule = SCHEDULES[schedule]
    for phase in schedule:
        length, predictions, batch, steps = phase
        check_positive_int(sequence_length=length, predictions=predictions, batch_size=batch, steps=steps)
        if predictions > length or length > longest:
            raise ValueError(f"A phase must have at most {longest} tokens, and fewer predictions. Received: {phase}")
        if devices < batch and batch % devices:
            raise ValueError(
                f"`devices` must divide each batch, or be more. Received: devices={devices}, a batch of {batch}"
            )
    if not schedule:
        raise ValueError("`schedule` must have a phase. Received: none")
    return schedule


def table(estimates: Iterable[Estimate]) -> str:
    """Markdown: a row for each estimate, the parts of a step those of its first phase, and what is short first.

    A row says, too, how many of its devices have no example of that phase's batch.
    """
    lines = [
        "| devices | examples on each, at once | GB on each | GB sent a step | compute | update | all-reduce | host "
        "| step, s | run, hours | longest |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    first = None
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
        if first is None and each.bound != "compute":
            first = f"The {each.bound} is short first, at {each.devices:,} devices."
    return "\n".join([*lines, "", first or "The matrix products take the longest throughout."])

"""What a pre-training step takes on a device: memory, traffic, seconds. Its FLOPs are in `training/speed.py`."""

import math
from dataclasses import dataclass
from typing import Any

from keras_bert_zoo.checkpoints.shapes import backbone_shapes
from keras_bert_zoo.training.devices import Device
from keras_bert_zoo.training.speed import training_flops

_WEIGHT = 4  # Bytes of a weight, of its gradient, and of each of Adam's or LAMB's two moments.
# Tokens per second, masking included, of one process on a core of an AMD EPYC: the median of four measurements, rounded
# (`benchmarks/results/scaling_tensorflow.json`).
_HOST_TOKENS = 14_500_000
PARTS = ("compute", "memory", "network", "host")


def parameters(architecture: dict[str, Any]) -> int:
    """Return the number of weights of a `BertPretrainer` with this `BertBackbone.architecture`."""
    width, backbone = architecture["hidden_dim"], backbone_shapes({**architecture, "pooler": True})
    heads = width * width + 3 * width + architecture["vocabulary_size"] + 2 * width + 2
    return sum(map(math.prod, backbone.values())) + heads


def activation_bytes(
    architecture: dict[str, Any],
    length: int,
    predictions: int,
    precision: int = 2,
    rematerialise: bool = False,
    fused: bool = False,
) -> float:
    """Return the bytes that the forward pass of one example keeps for its gradient.

    A block counts as in Korthikanti et al. 2022, section 4.1, but with softmax and LayerNorm in float32. A fused
    attention kernel keeps no probabilities; it runs where none are dropped, or where the device's kernel has dropout.
    Past its queries, keys and values, the last block computes only [CLS] and the masked tokens, without a fused kernel;
    if it is causal, it computes all tokens. PyTorch was measured to keep 1.0 to 1.2 times as much, and XLA on a CPU to
    request 1.8 to 2.2 times as much.

    Args:
        architecture: `BertBackbone.architecture`.
        length: Number of tokens.
        predictions: Number of masked tokens.
        precision: Bytes of a number in a matmul.
        rematerialise: Keep only each block's input, and one whole block while it is recomputed.
        fused: Whether the device has a fused attention with dropout.
    """
    width, inner = architecture["hidden_dim"], architecture["intermediate_dim"]
    attention = length * precision * 4 * width  # Input, query, key and value.
    token = precision * (2 * width + 2 * inner) + 2 * _WEIGHT * width + 2 * width
    dropped = architecture["attention_dropout"] > 0
    probabilities = architecture["num_heads"] * length * (_WEIGHT + precision + dropped)
    block = attention + length * (token + probabilities * (dropped and not fused))
    last = block if architecture.get("causal") else attention + (1 + predictions) * (token + probabilities)
    blocks = architecture["num_layers"]
    kept = blocks * length * width * precision + block if rematerialise else (blocks - 1) * block + last
    logits = predictions * architecture["vocabulary_size"] * (precision + 2 * _WEIGHT)
    return kept + length * width * (2 * precision + 1) + logits


@dataclass(frozen=True)
class StepCost:
    """Cost of a step that is split evenly among devices.

    Attributes:
        flops: FLOPs of the whole batch, without those that rematerialisation repeats.
        weights: Bytes of weights, gradients, moments and the half-precision copy of the weights, per device.
        activations: Bytes kept for the examples that are processed at once, per device.
        devices: Number of devices.
        share: Examples of a batch per device.
        examples: Examples that a device processes at once, so that they fit into its memory.
        sent: Bytes that each device sends.
        compute: Seconds of the matmuls, at the measured share of the peak.
        memory: Seconds in which the update reads and writes weights, gradients and moments.
        network: Seconds of the all-reduce.
        host: Seconds in which the hosts make a batch, in parallel to the rest.
    """

    flops: float
    weights: float
    activations: float
    devices: int
    share: int
    examples: int
    sent: float
    compute: float
    memory: float
    network: float
    host: float

    @property
    def seconds(self) -> float:
        """Total seconds; only the hosts' work overlaps the rest."""
        return max(self.compute + self.memory + self.network, self.host)

    @property
    def waits(self) -> dict[str, float]:
        """Seconds that the step waits for each of `PARTS`: for the hosts only if they take longer than the rest."""
        device = {"compute": self.compute, "memory": self.memory, "network": self.network}
        hidden = sum(device.values()) < self.host
        return {**(dict.fromkeys(device, 0.0) if hidden else device), "host": self.host if hidden else 0.0}

    @property
    def bound(self) -> str:
        """The part that the step waits for longest: `"compute"`, `"memory"`, `"network"` or `"host"`."""
        return max(PARTS, key=self.waits.__getitem__)


def step_cost(
    architecture: dict[str, Any],
    length: int,
    predictions: int,
    batch_size: int,
    device: Device,
    devices: int,
    efficiency: float,
    rematerialise: bool = False,
) -> StepCost:
    """Return the cost of a data-parallel pre-training step; names are as in `keras_bert_zoo.pretraining.estimate`."""
    count = parameters(architecture)
    share = batch_size // devices
    copy = 0 if device.precision == _WEIGHT else device.precision
    each = activation_bytes(architecture, length, predictions, device.precision, rematerialise, device.fused)
    weights = count * (4 * _WEIGHT + copy)
    examples = share
    if weights + share * each > device.memory:
        weights += count * _WEIGHT  # The sum of the parts' gradients.
        fit = int((device.memory - weights) // each)
        if fit < 1:
            raise ValueError(
                f"The weights and one example must fit into {device.memory / 1e9:.0f} GB. "
                f"Received: a model that needs {(weights + each) / 1e9:.1f} GB at length {length}"
            )
        examples = -(-share // -(-share // fit))  # In parts of equal size.
    flops = batch_size * training_flops(architecture, length, predictions)
    again = batch_size * training_flops({**architecture, "pooler": False}, length) / 3 if rematerialise else 0
    # The update reads the gradient for its norm, then gradient, weight and moments, and writes weight and moments. For
    # the weight's copy in half precision it reads the weight again and writes the copy.
    update = (8 * _WEIGHT + (_WEIGHT + copy if copy else 0)) * count / device.bandwidth
    hosts = -(-devices // device.hosted)
    return StepCost(
        flops=flops,
        weights=weights,
        activations=examples * each,
        devices=devices,
        share=share,
        examples=examples,
        sent=2 * (devices - 1) / devices * _WEIGHT * count,  # A ring all-reduce (Patarasuk & Yuan 2009).
        compute=(flops + again) / devices / (device.peak * efficiency),
        memory=update,
        network=_all_reduce_seconds(_WEIGHT * count, device, devices),
        host=batch_size * length / (hosts * _HOST_TOKENS),
    )


def _all_reduce_seconds(size: float, device: Device, devices: int) -> float:
    """Return the seconds of an all-reduce within groups, then of each device's part between them, without latency."""
    group = min(device.group, devices)
    groups = -(-devices // group)
    within = 2 * (group - 1) / group * size / device.link
    between = 2 * (groups - 1) / groups * size / group / device.network
    return within + between

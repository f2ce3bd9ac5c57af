"""Vendors' data on their devices, and what was measured on them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """An accelerator, a chip of a TPU, or a machine without one.

    Attributes:
        peak: FLOP/s of dense matmuls in half precision, float32 for a CPU.
        memory: Bytes of memory that a program may fill: the vendor's GB as 10^9 bytes, as devices have GiB and the
            runtime needs some of the 7 % between.
        bandwidth: Bytes per second from and to that memory.
        link: Bytes per second that a device sends within its group; for a TPU those of a pod's all-reduce.
        group: Devices with such links: a machine of GPUs, a pod of TPUs.
        network: Bytes per second that a device sends to other groups, its share of the machine's adapters.
        hosted: Devices per host.
        measured: Share of the peak that the matmuls of BERT's training step reached with enough examples per device,
            without update and all-reduce; None if no measurement is known.
        driver: Regular expression for part of the name that the driver reports.
        fused: Whether attention is fused with its dropout, so that no probabilities are kept.
        precision: Bytes of a number in a matmul.
    """

    peak: float
    memory: float
    bandwidth: float
    link: float
    group: int
    network: float
    hosted: int
    measured: float | None = None
    driver: str = ""
    fused: bool = False
    precision: int = 2


# The GPUs' numbers are from NVIDIA's data sheets, for SXM boards. NVLink's bytes are in one direction, half of what is
# printed. A machine has eight GPUs as in the DGX, whose user guides list the adapters: A100 8 x 200 Gb/s, H100 and H200
# 8 x 400, DGX-1 4 x 100. L4 and T4 are on PCIe, with 100 Gb/s for eight as in AWS' g6.48xlarge and g4dn.metal.
# The TPUs' numbers are from Google's pages on Cloud TPU v3 to v6e: memory, hosts, and a pod's all-reduce bandwidth
# divided by its chips. For v5p, which states none, they are the interconnect's bandwidth and its largest job of 6,144
# chips.
#
# The measurements are the following. BERT-large at length 128 in NVIDIA's DeepLearningExamples reaches 580 sequences/s
# on an A100 (PyTorch) and 206 on a V100 (TensorFlow 2 with XLA). In MLPerf it reaches 844 on an H100 at lengths of up
# to 512, where half is padding that is skipped (Krell et al. 2021). The paper's schedule takes 81.4 hours at a batch
# size of 512 on 16 chips of TPU v3 (You et al. 2019, table 1). Our BERT base at length 128 reaches 4,898 sequences/s on
# an H200 with JAX (benchmarks/results/gpu_pretraining.json). On two cores with AVX-512, whose matmuls reach 1.95e11
# FLOP/s, it reaches 2.35 with PyTorch in float32 (benchmarks/results/pretraining_step.json). The cores' bandwidths, of
# memory and of a network of 10 Gb/s, are guesses.
DEVICES = {
    "h200": Device(989e12, 141e9, 4.8e12, 450e9, 8, 50e9, 8, 0.35, "H200", fused=True),
    "h100": Device(989e12, 80e9, 3.35e12, 450e9, 8, 50e9, 8, 0.42, "H100", fused=True),
    "a100": Device(312e12, 80e9, 2.039e12, 300e9, 8, 25e9, 8, 0.45, "A100", fused=True),
    "v100": Device(125e12, 32e9, 0.9e12, 150e9, 8, 6.25e9, 8, 0.40, "V100", fused=True),
    "l4": Device(121e12, 24e9, 0.3e12, 32e9, 8, 1.56e9, 8, driver="L4", fused=True),
    "t4": Device(65e12, 16e9, 0.32e12, 16e9, 8, 1.56e9, 8, driver="T4", fused=True),
    # A v3 chip has no `driver` here: the driver shows it as two devices, whose name must not lead to the peak of both.
    # "litepod" is from TPU_ACCELERATOR_TYPE; the other names are JAX's and libtpu's.
    "tpu_v3": Device(123e12, 32e9, 0.9e12, 332e9, 1024, 3.1e9, 4, 0.306),
    "tpu_v4": Device(275e12, 32e9, 1.2e12, 269e9, 4096, 3.1e9, 4, driver="TPU v4$"),
    "tpu_v5e": Device(197e12, 16e9, 0.819e12, 200e9, 256, 3.1e9, 8, driver="TPU v5( lite|e|litepod)"),
    "tpu_v5p": Device(459e12, 95e9, 2.765e12, 600e9, 6144, 6.25e9, 4, driver="TPU v5p?$"),
    "tpu_v6e": Device(918e12, 32e9, 1.638e12, 400e9, 256, 12.5e9, 8, driver="TPU v6( lite|e)"),
    "cpu": Device(1.95e11, 24e9, 2e10, 1.25e9, 1, 1.25e9, 1, 0.89, precision=4),
}

# From NVIDIA's data sheets: boards with fewer cores or less power, whose names contain those of others.
_OTHER_BOARDS = {"H200 NVL": 835e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "V100-PCIE": 112e12}


def peak_of(name: str) -> float | None:
    """Return the half-precision FLOP/s of the accelerator with this driver name, or None if unknown."""
    peaks = _OTHER_BOARDS | {each.driver: each.peak for each in DEVICES.values() if each.driver}
    known = (peak for driver, peak in peaks.items() if re.search(rf"\b(?:{driver})\b", name))
    # The name of a part of a GPU (MIG) begins with the GPU's name.
    return None if re.search(r"\bMIG\b", name) else next(known, None)

"""The command `estimate`: the cost of pre-training on other machines."""

import argparse
from typing import Any

from keras_bert_zoo.cli.commands import add_command
from keras_bert_zoo.pretraining.estimate import SCHEDULES, estimate, table
from keras_bert_zoo.training.devices import DEVICES

_ESTIMATE = """\
BERT large on TPU v3, by the schedule of "Training BERT in 76 minutes":

  keras-bert-zoo estimate --preset bert_large --device tpu_v3 --schedule lamb --devices 16 64 256 1024
"""


def add_commands(commands: Any) -> None:
    summary = "Estimate memory, communication and time of pre-training on other machines."
    parser = add_command(commands, "estimate", summary, _ESTIMATE, _run)
    parser.add_argument("--preset", required=True, help="a name or a directory")
    parser.add_argument("--device", required=True, choices=DEVICES, help="kind of device")
    parser.add_argument("--devices", type=int, nargs="+", default=[1], metavar="COUNT", help="one row each (1)")
    parser.add_argument("--schedule", choices=SCHEDULES, default="paper", help="batches and steps (%(default)s)")
    parser.add_argument("--efficiency", type=float, help="share of the peak that is reached (as measured by others)")
    parser.add_argument("--rematerialise", action="store_true", help="compute each block again for its gradient")


def _run(options: argparse.Namespace) -> None:
    rows = [
        estimate(options.preset, options.device, count, options.schedule, options.efficiency, options.rematerialise)
        for count in options.devices
    ]
    print(f"{options.preset}, {rows[0].parameters:,} weights, {rows[0].flops:.3g} FLOPs, on {options.device}:\n")
    print(table(rows))

"""Checks of the backbone that a task is built on."""

from typing import Any

from keras_bert_zoo.checks import refuse_unknown
from keras_bert_zoo.models.backbone import BertBackbone


def check_task_arguments(task: Any, backbone: Any, kwargs: dict[str, Any]) -> None:
    """Check what every task's constructor takes, before the backbone is used."""
    refuse_unknown(type(task).__name__, kwargs, known=("trainable",))
    if not isinstance(backbone, BertBackbone):
        raise ValueError(
            "`backbone` must be a BertBackbone; `from_preset` takes a preset. "
            f"Received: backbone of type {type(backbone).__name__}"
        )


def check_pooler(backbone: BertBackbone) -> None:
    """Check that the backbone has the pooled output that a head needs."""
    if "pooled_output" not in backbone.output:
        raise ValueError("`backbone` must have a pooler. Received: one with pooler=False")


def check_sees_text(backbone: BertBackbone) -> None:
    """Check that the backbone is not causal, for a head on the vector of `[CLS]`, each text's first token."""
    if backbone.architecture["causal"]:
        raise ValueError(
            "`backbone` must not be causal, as its [CLS] sees nothing but itself. Received: one with causal=True"
        )

"""Rebuilding of a task with other dropout rates, which are part of its layers."""

from typing import Any

from keras_bert_zoo.models.backbone import BertBackbone


def with_dropout(task: Any, dropout: float, attention_dropout: float) -> Any:
    """Return a task with the same weights and these rates, compiled with its defaults; the head's rate is `dropout`."""
    rates = {"dropout": dropout, "attention_dropout": attention_dropout}
    dtype = task.backbone.embeddings.dtype_policy
    backbone = BertBackbone(**{**task.backbone.architecture, "dtype": dtype, **rates})
    config = {name: value for name, value in task.get_config().items() if name not in ("backbone", "preprocessor")}
    if "dropout" in config:
        config["dropout"] = dropout
    other = type(task)(backbone, preprocessor=task.preprocessor, **config)
    other.set_weights(task.get_weights())
    return other

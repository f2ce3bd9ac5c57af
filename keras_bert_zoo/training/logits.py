"""Conversion of losses and metrics to those of logits, as all classification outputs are logits."""

import inspect
from functools import partial
from typing import Any

import keras

_LOSSES = {
    name.lower(): partial(getattr(keras.losses, name), from_logits=True)
    for name in (
        "BinaryCrossentropy",
        "BinaryFocalCrossentropy",
        "CategoricalCrossentropy",
        "CategoricalFocalCrossentropy",
        "SparseCategoricalCrossentropy",
    )
}
# No argument turns these into losses of logits.
_LOSSES_OF_PROBABILITIES = {"kldivergence", "categoricalgeneralizedcrossentropy", "dice", "tversky"}
_COUNTS = {
    each.__name__.lower(): partial(each, thresholds=0.0)
    for each in (
        keras.metrics.Precision,
        keras.metrics.Recall,
        keras.metrics.TruePositives,
        keras.metrics.TrueNegatives,
        keras.metrics.FalsePositives,
        keras.metrics.FalseNegatives,
    )
}
# For a sigmoid, where a logit of 0 is a probability of one half. A softmax depends on all logits of an example.
_METRICS_OF_EACH = {
    **_COUNTS,
    "auc": partial(keras.metrics.AUC, from_logits=True),
    "binaryaccuracy": partial(keras.metrics.BinaryAccuracy, threshold=0.0),
    "binarycrossentropy": partial(keras.metrics.BinaryCrossentropy, from_logits=True),
}
_METRICS = {
    **_METRICS_OF_EACH,
    "categoricalcrossentropy": partial(keras.metrics.CategoricalCrossentropy, from_logits=True),
    "sparsecategoricalcrossentropy": partial(keras.metrics.SparseCategoricalCrossentropy, from_logits=True),
}
_METRICS_OF_PROBABILITIES = {
    "binaryfocalcrossentropy",
    "binaryiou",
    "categoricalfocalcrossentropy",
    "kldivergence",
    "precisionatrecall",
    "recallatprecision",
    "sensitivityatspecificity",
    "specificityatsensitivity",
}
_ALIASES = {
    "bce": "binarycrossentropy",
    "kld": "kldivergence",
    "mae": "meanabsoluteerror",
    "mape": "meanabsolutepercentageerror",
    "mse": "meansquarederror",
    "msle": "meansquaredlogarithmicerror",
}
# All other losses of Keras compare targets and outputs value by value.
_LOSSES_OF_LABELS = {"sparsecategoricalcrossentropy", "circle", "ctc"}
_LOSSES_OF_VALUES = {
    name.lower().replace("_", "")
    for name, loss in vars(keras.losses).items()
    if getattr(loss, "__module__", None) == keras.losses.MeanSquaredError.__module__
} - _LOSSES_OF_LABELS


def loss_of_logits(loss: Any) -> Any:
    """Return a Keras loss, given by name, function or class, as one of logits; reject one of probabilities.

    A loss of probabilities would train on logits, but towards something else. A user's own losses are returned
    unchanged.
    """
    name = _keras_name(loss)
    if name in _LOSSES and not _is_object(loss):
        return _LOSSES[name]()
    if name in _LOSSES_OF_PROBABILITIES:
        raise ValueError(
            "`loss` must be of logits, such as CategoricalCrossentropy(from_logits=True) for class probabilities. "
            f"Received: {_shown(loss)}, which is of probabilities"
        )
    _refuse(loss, name, "loss")
    return loss


def check_targets_fit(loss: Any, targets: Any, outputs: Any) -> None:
    """Check the shape of targets for a Keras loss that compares them with outputs of a shape value by value.

    It would stretch one shape to the other: `[batch]` labels to `[batch, classes]` if there are as many of both. Any
    other loss may do with its targets what it likes.
    """
    pairs = zip(targets, outputs, strict=False)
    if len(targets) == len(outputs) and all(None in pair or pair[0] == pair[1] for pair in pairs):
        return
    for each in keras.tree.flatten(loss):
        if _keras_name(each) in _LOSSES_OF_VALUES:
            raise ValueError(
                f"`loss` must take labels, as the default does, or `y` have the outputs' shape, {tuple(outputs)}. "
                f"Received: loss={_shown(each)}, y.shape={tuple(targets)}"
            )


def metric_of_logits(metric: Any, activation: str) -> Any:
    """Do the same for a metric; `activation` (`"softmax"` or `"sigmoid"`) would convert logits to probabilities."""
    name = _keras_name(metric)
    if isinstance(metric, str) and name in ("accuracy", "acc") and activation == "sigmoid":
        return _METRICS["binaryaccuracy"](name=metric)  # For this name Keras looks for the most probable class.
    if name in _METRICS_OF_PROBABILITIES:
        raise ValueError(f"`metrics` must be of logits. Received: {_shown(metric)}, which is of probabilities")
    is_of_most = _is_object(metric) and name in _COUNTS and metric.get_config().get("top_k") is not None
    if name in _METRICS_OF_EACH and activation == "softmax" and not is_of_most:
        raise ValueError(
            "`metrics` must use all logits of an example (one class of several), as accuracy does. "
            f"Received: {_shown(metric)}, which looks at each logit alone"
        )
    if name in _METRICS and not _is_object(metric):
        return _METRICS[name](**({"name": metric} if isinstance(metric, str) else {}))
    _refuse(metric, name, "metrics")
    if name in ("binaryaccuracy", *_COUNTS) and not is_of_most:
        option = "threshold" if name == "binaryaccuracy" else "thresholds"
        value = metric.get_config()[option]
        if value in (None, 0.5, [0.5]):
            raise ValueError(
                f"`metrics` must be of logits: use {type(metric).__name__}({option}=0.0) "
                f"for a probability of one half. Received: one with {option}={value}"
            )
    if name in ("f1score", "fbetascore") and _is_object(metric) and metric.threshold is not None:
        raise ValueError(
            "`metrics` must be of logits; ValidationScores has the scores of labels. "
            f"Received: {type(metric).__name__}(threshold={metric.threshold}), which is of probabilities"
        )
    return metric


def _refuse(value: Any, name: str, argument: str) -> None:
    if name in ("crossentropy", "ce"):  # Keras would choose one of probabilities.
        raise ValueError(
            f'`{argument}` must name the cross-entropy, such as "sparse_categorical_crossentropy". '
            f"Received: {argument}={value!r}"
        )
    # Other losses' configs may hold what cannot be serialised, such as a function.
    is_known = name in (_LOSSES if argument == "loss" else _METRICS)
    if is_known and _is_object(value) and value.get_config().get("from_logits") is False:
        raise ValueError(
            f"`{argument}` must be of logits: use {type(value).__name__}(from_logits=True). "
            "Received: one with from_logits=False"
        )


def _keras_name(value: Any) -> str:
    """Return the name of Keras' own loss or metric in lower case without underscores; others have an empty one."""
    if isinstance(value, str):
        name = value
    else:
        kind = value if inspect.isclass(value) or inspect.isfunction(value) else type(value)
        name = kind.__name__ if kind.__module__.startswith("keras.") else ""
    name = name.lower().replace("_", "")
    return _ALIASES.get(name, name)


def _is_object(value: Any) -> bool:
    return isinstance(value, (keras.losses.Loss, keras.metrics.Metric))


def _shown(value: Any) -> str:
    return type(value).__name__ if _is_object(value) else getattr(value, "__name__", repr(value))

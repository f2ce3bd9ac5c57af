"""Classification of texts and text pairs, such as GLUE (Devlin et al. 2019, section 4.1)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_bert_zoo.checks import check_flag, check_rate
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_task_arguments
from keras_bert_zoo.models.classes import HasClasses, checked_classes
from keras_bert_zoo.models.inputs import as_array, as_row, finite_float32, unboxed
from keras_bert_zoo.models.linear_head import linear_head
from keras_bert_zoo.models.pooling import pool
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.probabilities import sigmoid, softmax
from keras_bert_zoo.text.texts import is_list


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertTextClassifier(HasClasses, Task):
    """BERT with a linear layer on the pooled output, one vector per text.

    By default `compile` has cross-entropy, of each class with `multi_label`, and accuracy. With
    `keras.losses.CategoricalCrossentropy(from_logits=True)` targets may be class probabilities, `[examples,
    num_classes]`.

    Args:
        backbone: The encoder; it must have a pooler.
        num_classes: Number of classes; not needed with `class_names`.
        class_names: Names of the classes, in the order of the logits. Targets may then be names. Without it, `fit`
            learns the sorted names in the targets; with `multi_label`, names in targets require it.
        multi_label: If True, any number of classes may apply at once: targets are 0/1 arrays `[examples, num_classes]`
            or a list of names per example.
        dropout: Dropout rate of the pooled output.
        pooling: Input of the pooler: `"first"`, the vector of `[CLS]`; `"last"`, the vector of the last token, the only
            one that sees the whole text in a causal backbone; `"bilstm"`, the final states of a fresh BiLSTM over all
            tokens (Devlin et al. 2019, section 5.1). A preset can store only the first; `save` keeps all.
        preprocessor: Turns raw text into arrays; None accepts ready arrays only.

    Returns:
        float32 logits `[batch, num_classes]`.

    Example:

    ```python
    classifier = BertTextClassifier.from_preset("bert_base", num_classes=2)
    classifier.fit(train_texts, train_labels, epochs=3, validation_data=(dev_texts, dev_labels))
    classifier.predict(["a charming and often affecting journey"])      # logits
    classifier.fit((questions, sentences), labels)                      # pairs
    ```
    """

    preprocessor_class = BertPreprocessor
    head_layers: ClassVar[tuple[str, ...]] = ("classifier", "bilstm")
    label_dimensions = 1

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        multi_label: bool = False,
        dropout: float = 0.1,
        pooling: str = "first",
        preprocessor: BertPreprocessor | None = None,
        name: str = "bert_text_classifier",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        check_flag(multi_label=multi_label)
        num_classes = checked_classes(num_classes, class_names, fewest=1 if multi_label else 2)
        check_rate(dropout=dropout)
        head = linear_head(backbone, num_classes, self.head_layers[0])
        pooled = Dropout(dropout, dtype="float32", name="classifier_dropout")(pool(backbone, pooling))
        self.num_classes = num_classes
        self.class_names = None if class_names is None else list(class_names)
        self.multi_label = multi_label
        self.dropout = dropout
        self.pooling = pooling
        super().__init__(backbone, preprocessor, backbone.input, head(pooled), name, **kwargs)

    @property
    def activation(self) -> str:
        return "sigmoid" if self.multi_label else "softmax"

    def default_loss(self) -> keras.losses.Loss:
        kind = keras.losses.BinaryCrossentropy if self.multi_label else keras.losses.SparseCategoricalCrossentropy
        return kind(from_logits=True)

    def default_metrics(self) -> list[Any]:
        return ["accuracy"]  # By name, as targets may be labels or probabilities.

    def classify(self, x: Any, batch_size: int | None = None) -> list[list[tuple[str, float]]]:
        """Return the classes of each text with their probabilities.

        Args:
            x: A list of one or more texts, or any other input of `predict`.
            batch_size: As in `predict`.

        Returns:
            For each text a list of `(name, probability)`, most probable first. Probabilities sum to 1, or are
            independent with `multi_label`. Classes without names are named by their number.
        """
        logits = self.predict(x, batch_size=batch_size, verbose=0)
        names = self.class_names or [str(i) for i in range(self.num_classes)]
        rows = (sigmoid if self.multi_label else softmax)(logits)
        return [sorted(zip(names, map(float, row), strict=True), key=lambda pair: -pair[1]) for row in rows]

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        if self.multi_label:
            return self._encode_label_sets(y, count)
        given = unboxed(as_array("y", y))
        labels = as_row("y", given, count)
        if labels.shape != (count,):
            hint = ""
            if labels.shape == (count, self.num_classes):
                if not isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy):
                    return finite_float32("y", labels)  # Class probabilities, such as smoothed or mixed labels.
                hint = ", or `loss` must take class probabilities, as CategoricalCrossentropy(from_logits=True) does"
            raise ValueError(
                f"`y` must have the shape ({count},), one label per example{hint}. Received: y.shape={labels.shape}"
            )
        return self.number_classes(y if given.ndim == 1 else labels, learn)

    def are_labels(self, y: Any) -> bool:
        return self.multi_label or super().are_labels(y)

    def _encode_label_sets(self, y: Any, count: int) -> np.ndarray:
        if is_list(y) and not (isinstance(y, np.ndarray) and y.dtype.kind in "iufb"):
            y = [list(row) if is_list(row) else row for row in y]  # A row of a parquet column is an array.
        rows = y if isinstance(y, list) else []
        sets = [row for row in rows if isinstance(row, (list, set, frozenset))]
        if any(isinstance(name, str) for row in sets for name in row) or (sets and not any(sets)):
            if len(rows) != count:
                raise ValueError(f"`y` must have one row per example, {count}. Received: {len(rows)}")
            names = self.class_names or []
            numbers = {name: number for number, name in enumerate(names)}
            if not names and any(sets):
                raise ValueError(
                    "`class_names` must be given if `y` holds names with multi_label. "
                    f"Received: y with {next(name for row in sets for name in row)!r}"
                )
            encoded = np.zeros((count, self.num_classes), dtype="float32")
            for i, row in enumerate(rows):
                if not isinstance(row, (list, set, frozenset)):
                    raise ValueError(f"`y` must hold a list of names per example. Received: y[{i}]={row!r}")
                for name in row:
                    number = numbers.get(name) if isinstance(name, str) else None  # A list has no hash.
                    if number is None:
                        raise ValueError(f"`y` must hold names of class_names={names}. Received: y[{i}] with {name!r}")
                    encoded[i, number] = 1
            return encoded
        labels = as_array("y", y)
        if labels.shape != (count, self.num_classes):
            raise ValueError(
                f"`y` must have the shape ({count}, {self.num_classes}) with multi_label. "
                f"Received: y.shape={labels.shape}"
            )
        targets = finite_float32("y", labels)
        others = labels[~np.isin(targets, (0, 1))]
        if others.size:
            raise ValueError(f"`y` must hold 0 and 1 only with multi_label. Received: y with {others[0]}")
        return targets

    def weigh_classes(self, targets: np.ndarray, class_weight: dict[Any, float]) -> np.ndarray:
        if self.multi_label or targets.ndim > 1:
            received = "multi_label=True" if self.multi_label else f"y.shape={targets.shape}"
            raise ValueError(f"`class_weight` needs one class per example. Received: {received}")
        return self.class_weights(class_weight)[targets]

    def head_config(self) -> dict[str, Any]:
        return {
            "num_classes": self.num_classes,
            "class_names": self.class_names,
            "multi_label": self.multi_label,
            "dropout": self.dropout,
            "pooling": self.pooling,
        }

    def check_preset(self) -> None:
        super().check_preset()
        if self.pooling != "first":  # transformers would load it and compute something else.
            raise ValueError(
                'A preset needs `pooling="first"`; save(".keras") keeps any. '
                f"Received: a classifier with pooling={self.pooling!r}"
            )

"""Regression for texts and text pairs, such as STS-B (Devlin et al. 2019, section 4.1)."""

from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_rate
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_pooler, check_sees_text, check_task_arguments
from keras_bert_zoo.models.inputs import as_row, finite_float32, unboxed
from keras_bert_zoo.models.linear_head import linear_head
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.models.task import Task


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertTextRegressor(Task):
    """BERT with one linear output on the pooled output.

    By default `compile` has the mean squared error.

    Args:
        backbone: The encoder; it must have a pooler, and not be causal.
        dropout: Dropout rate of the pooled output.
        preprocessor: Turns raw text into arrays; None accepts ready arrays only.

    Returns:
        float32 `[batch, 1]`; `predict` gives `[examples]`.

    Example:

    ```python
    regressor = BertTextRegressor.from_preset("bert_base")
    regressor.fit((first, second), scores, epochs=3)                    # pairs and a number each
    regressor.predict((["A plane is taking off."], ["An air plane is taking off."]))
    ```
    """

    preprocessor_class = BertPreprocessor
    head_layers = ("regressor",)
    activation = None

    def __init__(
        self,
        backbone: BertBackbone,
        dropout: float = 0.1,
        preprocessor: BertPreprocessor | None = None,
        name: str = "bert_text_regressor",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        check_rate(dropout=dropout)
        check_pooler(backbone)
        check_sees_text(backbone)
        head = linear_head(backbone, 1, self.head_layers[0])
        pooled = backbone(backbone.input, output_positions=0)["pooled_output"]
        dropped = Dropout(dropout, dtype="float32", name="regressor_dropout")(pooled)
        self.dropout = dropout
        super().__init__(backbone, preprocessor, backbone.input, head(dropped), name, **kwargs)

    def default_loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def predict(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """Like `keras.Model.predict`, but also for raw text; returns float32 `[examples]`, in the order of `x`."""
        return super().predict(*args, **kwargs)[:, 0]

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        numbers = unboxed(as_row("y", y, count))  # `batches` returns a column.
        if numbers.shape != (count,):
            raise ValueError(
                f"`y` must have the shape ({count},), one number per example. Received: y.shape={numbers.shape}"
            )
        # Give targets the outputs' shape, so that no loss or metric has to guess which of the two to expand.
        return finite_float32("y", numbers, "iuf")[:, None]

    def are_labels(self, y: Any) -> bool:
        return True  # Any loss takes numbers of the outputs' shape.

    def head_config(self) -> dict[str, Any]:
        return {"dropout": self.dropout}

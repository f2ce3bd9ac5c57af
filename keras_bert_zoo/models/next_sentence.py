"""Next sentence prediction (Devlin et al. 2019, section 3.1, task 2)."""

from typing import Any

import keras

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_task_arguments
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.models.text_classifier import BertTextClassifier


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertNextSentencePredictor(BertTextClassifier):
    """Classifier of text pairs with BERT's pre-trained next-sentence head.

    Args:
        backbone: The encoder; it must have a pooler and two segment types, and must not be causal.
        preprocessor: Turns raw text into arrays; None accepts ready arrays only.

    Returns:
        float32 logits `[batch, 2]`: class 0, `"is_next"`, and class 1, `"not_next"`.

    Example:

    ```python
    predictor = BertNextSentencePredictor.from_preset("bert_base")
    predictor.classify((["he went to the shop ."], ["he bought milk ."]))
    ```
    """

    head_layers = ("nsp",)
    pairs_only = True
    # They are not in the config, from which an ensemble would have them.
    num_classes, class_names, multi_label = 2, ["is_next", "not_next"], False

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertPreprocessor | None = None,
        name: str = "bert_next_sentence_predictor",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        super().__init__(
            backbone,
            class_names=self.class_names,
            dropout=0.0,
            preprocessor=preprocessor,
            name=name,
            **kwargs,
        )

    def check_pairs(self, pairs: bool) -> None:
        if not pairs:
            raise ValueError("`x` must be pairs, a tuple (first, second). Received: single texts")
        super().check_pairs(pairs)

    def head_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def head_arguments(cls, checkpoint: Checkpoint, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    def continues(self, checkpoint: Checkpoint) -> bool:
        return True

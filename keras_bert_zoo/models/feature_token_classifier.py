"""Classification of words from a frozen BERT's features (Devlin et al. 2019, section 5.3 and table 7)."""

from collections.abc import Sequence
from typing import Any, Self

import keras

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.layers import BiLSTM, WeightedSum
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_task_arguments
from keras_bert_zoo.models.features import checked_layers, last_layers
from keras_bert_zoo.models.frozen import freeze_again
from keras_bert_zoo.models.token_classifier import BertTokenClassifier
from keras_bert_zoo.models.word_preprocessor import BertWordPreprocessor

_COMBINATIONS = ("concatenate", "weighted_sum")


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertFeatureTokenClassifier(BertTokenClassifier):
    """A BiLSTM and a linear layer on the hidden states of a frozen BERT.

    Everything else is as in `BertTokenClassifier`. A preset cannot store the BiLSTM; `save` writes everything.

    Args:
        backbone: The encoder; it is set to `trainable=False`, and its dropout is off.
        num_classes: As in `BertTokenClassifier`.
        class_names: As in `BertTokenClassifier`.
        hidden_layers: Indices of the hidden states to use: 0 is the embeddings, 1 the first block's output, -1 the last
            block's. The paper's rows are `[0]`, `[-2]`, `[-1]`, the last four, and all blocks. None uses the last four,
            or all blocks if there are fewer.
        combine: `"concatenate"`, or `"weighted_sum"` with learned weights.
        units: Width of each direction of the BiLSTM.
        num_layers: Number of BiLSTM layers.
        dropout: As in `BertTokenClassifier`.
        preprocessor: As in `BertTokenClassifier`.

    Example:

    ```python
    tagger = BertFeatureTokenClassifier.from_preset("bert_base_cased", num_classes=9)     # the paper's best: 96.1
    tagger.fit(*train.by_document(), epochs=10)
    ```
    """

    head_layers = ("classifier", "bilstm", "weighted_sum")
    peak = 1e-3  # Nothing pre-trained is changed.

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        hidden_layers: Sequence[int] | None = None,
        combine: str = "concatenate",
        units: int = 768,
        num_layers: int = 2,
        dropout: float = 0.1,
        preprocessor: BertWordPreprocessor | None = None,
        name: str = "bert_feature_token_classifier",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        if hidden_layers is None:
            hidden_layers = last_layers(backbone.architecture["num_layers"])
        chosen = checked_layers(backbone, hidden_layers=hidden_layers)
        if combine not in _COMBINATIONS:
            raise ValueError(f"`combine` must be one of {_COMBINATIONS}. Received: combine={combine!r}")
        check_positive_int(units=units, num_layers=num_layers)
        self.hidden_layers = chosen
        self.combine = combine
        self.units = units
        self.num_layers = num_layers
        super().__init__(backbone, num_classes, class_names, dropout, preprocessor, name, **kwargs)
        backbone.trainable = False

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        saved = config["backbone"]["config"]
        trainable, frozen = saved["trainable"], saved.get("frozen")
        task = super().from_config(config, custom_objects)
        task.backbone.trainable = trainable  # The constructor has frozen what may have been thawed since.
        freeze_again(task.backbone, frozen)
        return task

    def features(self, backbone: BertBackbone) -> Any:
        states = backbone.extractor()(backbone.input)["hidden_states"]
        chosen = [states[i] for i in self.hidden_layers]
        dtype = backbone.embeddings.dtype_policy
        if self.combine == "weighted_sum":
            hidden = WeightedSum(dtype=dtype, name="weighted_sum")(chosen)
        else:
            hidden = keras.ops.concatenate(chosen, axis=-1)
        return BiLSTM(self.units, self.num_layers, dtype=dtype, name="bilstm")(hidden, backbone.input["padding_mask"])

    def head_config(self) -> dict[str, Any]:
        return {
            **super().head_config(),
            "hidden_layers": list(self.hidden_layers),
            "combine": self.combine,
            "units": self.units,
            "num_layers": self.num_layers,
        }

    def continues(self, checkpoint: Checkpoint) -> bool:
        return False

    def check_preset(self) -> None:
        raise ValueError("A preset cannot store a BiLSTM; save() keeps it. Received: a BertFeatureTokenClassifier")

"""A backbone that also outputs hidden states and attention probabilities."""

from typing import Any

import keras

from keras_bert_zoo.checks import check_flag
from keras_bert_zoo.models.encoding import encode, outputs_of
from keras_bert_zoo.models.inputs import ChecksInputs


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertExtractor(ChecksInputs, keras.Model):
    """Features of every layer, with the weights of a backbone. `BertBackbone.extractor` creates one.

    It is not a functional model, because Keras assumes that an operation called twice has as many outputs the second
    time as the first.

    Args:
        backbone: The backbone, shared and not copied.
        hidden_states: Add `hidden_states`, a list of the embeddings and every block's output, each
            `[batch, length, hidden_dim]`.
        attention_scores: Add `attention_scores`, a list of every block's attention probabilities, each
            `[batch, heads, length, length]`; this disables fused attention.
    """

    def __init__(
        self, backbone: Any, hidden_states: bool = True, attention_scores: bool = False, **kwargs: Any
    ) -> None:
        check_flag(hidden_states=hidden_states, attention_scores=attention_scores)
        super().__init__(**kwargs)
        self.backbone = backbone
        self.hidden_states = hidden_states
        self.attention_scores = attention_scores

    def check_inputs(self, inputs: Any) -> None:
        self.backbone.check_inputs(inputs)

    def build(self, input_shape: Any = None) -> None:
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        backbone = self.backbone
        if not backbone.trainable:  # Frozen features have no dropout; functional models pass one flag to all layers.
            training = False
        states, scores = encode(backbone, inputs, training=training, attention_scores=self.attention_scores)
        outputs = outputs_of(backbone, states[-1])
        if self.hidden_states:
            outputs["hidden_states"] = states
        if self.attention_scores:
            outputs["attention_scores"] = scores
        return outputs

    def get_config(self) -> dict[str, Any]:
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "hidden_states": self.hidden_states,
            "attention_scores": self.attention_scores,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "BertExtractor":
        return cls(**{**config, "backbone": keras.saving.deserialize_keras_object(config["backbone"])})

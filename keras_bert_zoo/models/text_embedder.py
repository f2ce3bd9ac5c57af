"""Text embeddings: texts with similar meaning have similar vectors (Reimers & Gurevych 2019)."""

import os
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checkpoints.sentence_transformers import as_embedder
from keras_bert_zoo.checks import check_flag
from keras_bert_zoo.layers.pooling import TokenPooling
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_sees_text, check_task_arguments
from keras_bert_zoo.models.inputs import as_array, finite_float32, unboxed
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.models.task import Task


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertTextEmbedder(Task):
    """BERT with the vectors of a text's tokens pooled into one.

    `from_preset` reads pooling, normalisation, length and case from a sentence-transformers or keras-hub directory, and
    sentence-transformers can load what `save_to_preset` writes. Other presets do not store these settings: the
    arguments apply. Prompts, such as "query: ", are not stored: write them before the texts. An encoder that was not
    trained for embedding gives poor vectors.

    By default `compile` has Reimers & Gurevych's settings for distillation (2020, section 3): a peak learning rate of
    2e-5, and the mean squared error.

    Args:
        backbone: The encoder; with `"cls"` it must not be causal.
        pooling: `"mean"`, `"cls"` (the first token's vector, not the pooler's output) or `"max"`.
        normalize: Whether to scale vectors to length 1, so that their dot product is the cosine.
        preprocessor: Turns raw text into arrays; None accepts ready arrays only.

    Returns:
        float32 `[batch, hidden_dim]`.

    Example:

    ```python
    embedder = BertTextEmbedder.from_preset("hf://sentence-transformers/all-MiniLM-L6-v2")
    vectors = embedder.embed(["A cat sits outside.", "The new film is so great."])
    vectors @ vectors.T                                                 # cosines
    embedder.fit(texts, vectors_of_another_model)                       # learn another model's vectors
    ```
    """

    preprocessor_class = BertPreprocessor
    head_layers = ()
    peak = 2e-5
    needs_pooler = False
    activation = None

    def __init__(
        self,
        backbone: BertBackbone,
        pooling: str = "mean",
        normalize: bool = False,
        preprocessor: BertPreprocessor | None = None,
        name: str = "bert_text_embedder",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        check_flag(normalize=normalize)
        if pooling == "cls":
            check_sees_text(backbone)
        hidden = backbone(backbone.input, output_positions=0 if pooling == "cls" else None)["sequence_output"]
        pooled = TokenPooling(pooling, dtype="float32", name="pooling")(hidden, backbone.input["padding_mask"])
        if normalize:
            pooled = keras.layers.UnitNormalization(dtype="float32", name="normalize")(pooled)
        self.pooling = pooling
        self.normalize = normalize
        super().__init__(backbone, preprocessor, backbone.input, pooled, name, **kwargs)

    def default_loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def embed(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        """Return the vectors of texts.

        Args:
            x: A list of one or more texts, or any other input of `predict`.
            batch_size: As in `predict`.

        Returns:
            float32 `[texts, hidden_dim]`, in their order.
        """
        return self.predict(x, batch_size=batch_size, verbose=0)

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        vectors, shape = unboxed(as_array("y", y)), (count, self.backbone.architecture["hidden_dim"])
        if vectors.shape != shape:
            raise ValueError(f"`y` must have the shape {shape}, one vector per text. Received: y.shape={vectors.shape}")
        return finite_float32("y", vectors, "f")

    def are_labels(self, y: Any) -> bool:
        return True  # Any loss takes vectors of the outputs' shape.

    def head_config(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "normalize": self.normalize}

    @classmethod
    def read_preset(cls, preset: str | os.PathLike[str], load_weights: bool) -> Checkpoint:
        checkpoint = super().read_preset(preset, load_weights)
        return as_embedder(checkpoint) if checkpoint.modules else checkpoint

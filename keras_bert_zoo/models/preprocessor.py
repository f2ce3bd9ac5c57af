"""Preprocessor that turns raw text into a model's inputs."""

from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.text import BertTokenizer
from keras_bert_zoo.text.packing import Arrays, PackedTexts, pack_texts
from keras_bert_zoo.text.texts import split_texts
from keras_bert_zoo.text.tokenizer import check_is_tokenizer

# Register it here, not at the class, so that processes that only tokenise do not spend seconds importing Keras.
keras.saving.register_keras_serializable(package="keras_bert_zoo")(BertTokenizer)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertPreprocessor:
    """Convert texts, or pairs, to `[CLS] first [SEP] second [SEP]`.

    Args:
        tokenizer: The tokenizer.
        sequence_length: Maximum length in tokens, including special tokens. In longer pairs the longer text is cut.

    Example:

    ```python
    preprocessor = BertPreprocessor(BertTokenizer("vocab.txt"), sequence_length=128)
    preprocessor(["one text", "another"])                       # dict of int32 arrays [2, longest]
    preprocessor((["a question"], ["an answer"]))               # a pair
    ```
    """

    def __init__(self, tokenizer: BertTokenizer, sequence_length: int = 512) -> None:
        check_positive_int(sequence_length=sequence_length)
        if sequence_length < 4:  # [CLS], [SEP], [SEP] and one token
            raise ValueError(f"`sequence_length` must be at least 4. Received: sequence_length={sequence_length}")
        check_is_tokenizer(tokenizer)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    def pack(self, x: Any) -> PackedTexts:
        """Tokenise without padding."""
        first, second = split_texts(x)
        return pack_texts(self.tokenizer, first, second, self.sequence_length)

    def __call__(self, x: Any) -> Arrays:
        packed = self.pack(x)
        return packed.take(np.arange(len(packed.lengths)), int(packed.lengths.max(initial=0)))

    def get_config(self) -> dict[str, Any]:
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "sequence_length": self.sequence_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BertPreprocessor":
        return cls(**{**config, "tokenizer": keras.saving.deserialize_keras_object(config["tokenizer"])})

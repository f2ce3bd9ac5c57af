"""Preprocessor that turns questions with choices into a model's inputs."""

from typing import Any

import keras

from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.text.choices import PackedChoices, pack_choices


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertMultipleChoicePreprocessor(BertPreprocessor):
    """Convert contexts and choices to `[CLS] context [SEP] choice [SEP]`, one row per choice.

    Args:
        tokenizer: The tokenizer.
        sequence_length: Maximum length in tokens, including special tokens. In longer pairs the longer text is cut.

    Example:

    ```python
    preprocessor = BertMultipleChoicePreprocessor(BertTokenizer("vocab.txt"), sequence_length=128)
    preprocessor((["A man walks in."], [["He sits down.", "He flies."]]))   # dict of int32 arrays [1, 2, longest]
    ```
    """

    def pack(self, x: Any) -> PackedChoices:  # type: ignore[override]
        """Tokenise without padding."""
        return pack_choices(self.tokenizer, x, self.sequence_length)

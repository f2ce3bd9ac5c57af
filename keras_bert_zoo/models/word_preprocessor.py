"""Preprocessor that turns words into a model's inputs."""

from typing import Any

import keras

from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.text.windows import WordWindows, pack_words
from keras_bert_zoo.text.words import read_words


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertWordPreprocessor(BertPreprocessor):
    """Convert words to `[CLS] words [SEP]`, in as many windows as needed.

    Args:
        tokenizer: The tokenizer; it is applied to each word on its own.
        sequence_length: Maximum window length in tokens, including special tokens. Longer inputs are split into windows
            that overlap by half, so that no word is lost.

    Example:

    ```python
    preprocessor = BertWordPreprocessor(BertTokenizer("vocab.txt"), sequence_length=128)
    preprocessor([["EU", "rejects", "German", "call"]])         # dict of int32 arrays [windows, longest]
    preprocessor([[["EU", "rejects"], ["Peter", "Blackburn"]]]) # a document: its sentences in one window
    preprocessor(["EU rejects German call"])                    # a text, split into words
    ```
    """

    def pack(self, x: Any) -> WordWindows:  # type: ignore[override]
        """Tokenise without padding."""
        return pack_words(self.tokenizer, read_words(x), self.sequence_length)

"""Preprocessor that turns questions and contexts into a model's inputs."""

from typing import Any

import keras

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.text import BertTokenizer
from keras_bert_zoo.text.context_windows import ContextWindows, pack_contexts
from keras_bert_zoo.text.texts import split_texts


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertQuestionPreprocessor(BertPreprocessor):
    """Convert questions and contexts to `[CLS] question [SEP] context [SEP]`, with as many windows as needed.

    The defaults are those of google-research/bert's run_squad.py.

    Args:
        tokenizer: The tokenizer.
        sequence_length: Maximum window length in tokens, including special tokens.
        stride: Tokens from the start of a window to the start of the next.
        question_length: Maximum question length in tokens; longer questions are truncated.

    Example:

    ```python
    preprocessor = BertQuestionPreprocessor(BertTokenizer("vocab.txt"))
    preprocessor((["who was rollo ?"], ["a long context …"]))       # dict of int32 arrays [windows, longest]
    ```
    """

    def __init__(
        self, tokenizer: BertTokenizer, sequence_length: int = 384, stride: int = 128, question_length: int = 64
    ) -> None:
        super().__init__(tokenizer, sequence_length)
        check_positive_int(stride=stride, question_length=question_length)
        if sequence_length < question_length + 4:  # [CLS], [SEP], [SEP] and one token
            raise ValueError(
                "`sequence_length` must be at least question_length + 4. "
                f"Received: sequence_length={sequence_length}, question_length={question_length}"
            )
        self.stride = stride
        self.question_length = question_length

    def pack(self, x: Any) -> ContextWindows:
        """Tokenise without padding."""
        questions, contexts = split_texts(x)
        if contexts is None:
            raise ValueError("`x` must be pairs, a tuple (questions, contexts). Received: single texts")
        return pack_contexts(
            self.tokenizer, questions, contexts, self.sequence_length, self.stride, self.question_length
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "stride": self.stride, "question_length": self.question_length}

"""Multiple choice among texts, such as SWAG and DREAM (Devlin et al. 2019, section 4.4)."""

from typing import Any

import keras
import numpy as np

from keras_bert_zoo.checks import check_rate
from keras_bert_zoo.layers.choices import NOT_THERE, FoldChoices, UnfoldChoices
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_pooler, check_sees_text, check_task_arguments
from keras_bert_zoo.models.choice_preprocessor import BertMultipleChoicePreprocessor
from keras_bert_zoo.models.inputs import INPUT_NAMES, as_row, check_structure, check_values, is_numpy
from keras_bert_zoo.models.linear_head import linear_head
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.probabilities import softmax
from keras_bert_zoo.text.choices import PackedChoices
from keras_bert_zoo.text.packing import Examples


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertMultipleChoice(Task):
    """BERT with one vector that scores each choice's pooled output, for a softmax over a question's choices.

    Questions may have different numbers of choices. By default `compile` has the paper's settings for SWAG (Devlin et
    al. 2019, 4.4): a peak learning rate of 2e-5, cross-entropy, and accuracy.

    Args:
        backbone: The encoder; it must have a pooler and two segment types, and not be causal.
        dropout: Dropout rate of the pooled output.
        preprocessor: Turns contexts and choices into arrays; None accepts ready arrays only.

    Inputs:
        `(contexts, choices)`, a list of strings and a list of lists of strings; or a dict of `token_ids`, `segment_ids`
        and `padding_mask`, int32 `[questions, choices, length]`, with a mask of 0 for missing choices.

    Returns:
        float32 logits `[questions, choices]`, -1e9 for missing choices.

    Example:

    ```python
    chooser = BertMultipleChoice.from_preset("bert_base")
    chooser.fit((contexts, choices), answers)                           # numbers of the right choices
    chooser.choose((["She opened the door."], [["It was raining.", "Seven."]]))
    ```
    """

    preprocessor_class = BertMultipleChoicePreprocessor
    head_layers = ("scorer",)
    peak = 2e-5
    label_dimensions = 1
    raw_inputs = "a tuple (contexts, choices)"
    raw_in_memory = "contexts and choices"
    most_predicted_tokens = None  # A question has many texts.

    def __init__(
        self,
        backbone: BertBackbone,
        dropout: float = 0.1,
        preprocessor: BertMultipleChoicePreprocessor | None = None,
        name: str = "bert_multiple_choice",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        check_rate(dropout=dropout)
        check_pooler(backbone)
        check_sees_text(backbone)
        inputs = {name: keras.Input((None, None), dtype="int32", name=name) for name in INPUT_NAMES}
        rows = FoldChoices(name="fold_choices")(**inputs)
        pooled = backbone(rows, output_positions=0)["pooled_output"]
        pooled = Dropout(dropout, dtype="float32", name="scorer_dropout")(pooled)
        scores = linear_head(backbone, 1, self.head_layers[0])(pooled)
        logits = UnfoldChoices(dtype="float32", name="unfold_choices")(scores, inputs["padding_mask"])
        self.dropout = dropout
        super().__init__(backbone, preprocessor, inputs, logits, name, **kwargs)

    def default_loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list[Any]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def fit(
        self, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 3, *args: Any, **kwargs: Any
    ) -> Any:
        """Like `keras.Model.fit`, also for contexts and choices; the paper uses 16 questions per batch and 3 epochs."""
        if batch_size is None and self._is_columns(x):
            batch_size = 16
        return super().fit(x, y, batch_size, epochs, *args, **kwargs)

    def choose(self, x: Any, batch_size: int | None = None) -> list[tuple[int, list[float]]]:
        """Return the best choice for each question.

        Args:
            x: `(contexts, choices)`, or any other input of `predict`.
            batch_size: Questions per batch.

        Returns:
            For each question `(number, probabilities)`: the number of its best choice, from 0, and a probability for
            each of its choices.
        """
        logits = self.predict(x, batch_size=batch_size, verbose=0)
        rows = softmax(logits)
        return [(int(row.argmax()), row[there].tolist()) for row, there in zip(rows, logits > NOT_THERE, strict=True)]

    def check_inputs(self, inputs: Any) -> None:
        architecture = self.backbone.architecture
        check_structure(inputs, architecture["max_sequence_length"], ("questions", "choices", "length"))
        if is_numpy(inputs):
            check_values(inputs, architecture["vocabulary_size"], architecture["num_segments"])

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        numbers = as_row("y", y, count)
        if numbers.shape != (count,):
            raise ValueError(
                f"`y` must have the shape ({count},), one choice per question. Received: y.shape={numbers.shape}"
            )
        if numbers.dtype.kind not in "iu":
            raise ValueError(f"`y` must hold the numbers of the choices. Received: y.dtype={numbers.dtype}")
        if numbers.min() < 0:
            raise ValueError(f"`y` must hold the numbers of the choices, from 0 on. Received: y with {numbers.min()}")
        return numbers.astype("int32")

    def check_targets(self, examples: Examples, targets: np.ndarray, rows: np.ndarray) -> None:
        there = _choices_there(examples)
        chosen = np.arange(there.shape[1]) == targets[:, None]
        wrong = rows[~(there & chosen).any(-1)[rows]]
        if len(wrong):
            i = wrong[0]
            raise ValueError(
                "`y` must hold the number of one of the question's choices. "
                f"Received: y[{i}]={targets[i]} of {np.flatnonzero(there[i]).tolist()}"
            )

    def head_config(self) -> dict[str, Any]:
        return {"dropout": self.dropout}


def _choices_there(examples: Any) -> np.ndarray:
    """Return bool `[questions, choices]`, False for missing choices."""
    if isinstance(examples, PackedChoices):
        return np.arange(examples.counts.max()) < examples.counts[:, None]
    return (examples.arrays["padding_mask"] != 0).any(-1)

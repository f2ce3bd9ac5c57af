"""Extractive question answering: SQuAD 1.1 and 2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

import reprlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.layers.choices import NOT_THERE
from keras_bert_zoo.metrics.squad import answer_texts, squad_v1_scores, squad_v2_scores
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_task_arguments
from keras_bert_zoo.models.inputs import as_array, check_range, checked_weights
from keras_bert_zoo.models.linear_head import linear_head
from keras_bert_zoo.models.question_preprocessor import BertQuestionPreprocessor
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.models.trainer.by_length import outputs_by_length, predict_stream
from keras_bert_zoo.text import BertTokenizer
from keras_bert_zoo.text.answers import AnswerSpan, FoundAnswers, search_answers, texts_and_odds
from keras_bert_zoo.text.context_windows import ContextWindows
from keras_bert_zoo.text.packing import Examples
from keras_bert_zoo.text.texts import is_list
from keras_bert_zoo.training import TokenCrossentropy

# The window length of run_squad.py; longer windows are slower and seldom better.
_SEQUENCE_LENGTH = 384


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class SpanCrossentropy(TokenCrossentropy):
    """Mean of the cross-entropies of start and end, one number per example, as sample weights require."""

    def __init__(self, name: str = "span_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(super().call(y_true, y_pred), axis=-1)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertQuestionAnswerer(Task):
    """BERT with two linear outputs per token, for the start and the end of the answer.

    `x` is a tuple of a list of questions and a list of their contexts. Contexts may have any length: they are split
    into windows of the preprocessor's `sequence_length`. `y` has a list of answers `(text, start)` for each question,
    as `keras_bert_zoo.data.read_squad` returns them. Only the first is learned; an empty list means that the context
    has no answer. The target of a window without the answer is `[CLS]`. `batch_size`, `steps` and `validation_split`
    count windows.

    Padding is never an answer, nor part of the loss. google-research/bert, which pads all windows to one length, and
    transformers include it, so their loss for a window depends on its padding.

    By default `compile` has the SQuAD settings of google-research/bert's README: a peak learning rate of 3e-5 (5e-5 in
    its script's default and the console's recipe), the mean of the cross-entropies of start and end, and accuracy, the
    share of correct starts and ends.

    Ready arrays have int targets `[examples, 2]`, the positions of the answer's first and last token, and may be
    streamed.

    Args:
        backbone: The encoder; it needs no pooler.
        null_threshold: The answer is `""` if the score of no answer exceeds the best span's by more than this, as in
            SQuAD 2.0; see `tune_null_threshold`. None means that every context has an answer (SQuAD 1.1).
        preprocessor: Turns raw text into arrays; None accepts ready arrays only.

    Returns:
        float32 logits `[batch, 2, length]` of start and end; -1e9 at padding.

    Example:

    ```python
    train, dev = read_squad("train-v1.1.json"), read_squad("dev-v1.1.json")
    answerer = BertQuestionAnswerer.from_preset("bert_base")
    answerer.compile(AdamW(WarmupPolynomialDecay(5e-5)))
    answerer.fit((train.question, train.context), train.answers, epochs=3)
    answerer.score((dev.question, dev.context), dev.answers)        # the paper's: {"exact_match": 80.8, "f1": 88.5}
    answerer.answer("Who was Rollo?", "Rollo was a Viking …")       # AnswerSpan("a Viking", 10, 18, 0.9, …)
    ```

    Scores after each epoch: `callbacks=[ValidationScores(lambda model: model.score(dev_x, dev.answers))]`.
    """

    preprocessor_class = BertQuestionPreprocessor
    head_layers = ("spans",)
    label_dimensions = 2
    raw_inputs = "a tuple (questions, contexts)"
    raw_in_memory = "texts"
    needs_pooler = False

    def __init__(
        self,
        backbone: BertBackbone,
        null_threshold: float | None = None,
        preprocessor: BertQuestionPreprocessor | None = None,
        name: str = "bert_question_answerer",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        _check_threshold(null_threshold)
        head = linear_head(backbone, 2, "spans")
        logits = ops.transpose(head(backbone(backbone.input)["sequence_output"]), (0, 2, 1))
        tokens = ops.expand_dims(ops.cast(backbone.input["padding_mask"], "bool"), 1)
        self.null_threshold = None if null_threshold is None else float(null_threshold)
        # Mask padding, so that neither the loss nor a prediction depends on how much there is.
        logits = ops.where(tokens, logits, NOT_THERE)
        super().__init__(backbone, preprocessor, backbone.input, logits, name, **kwargs)

    def default_loss(self) -> keras.losses.Loss:
        return SpanCrossentropy()

    def default_metrics(self) -> list[Any]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    # --- Raw text and targets

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        places = as_array("y", y)
        if places.shape != (count, 2) or places.dtype.kind not in "iu":
            raise ValueError(
                f"`y` must hold integers of the shape ({count}, 2), first and last token, for ready arrays. "
                f"Received: y.shape={places.shape}, y.dtype={places.dtype}"
            )
        stop = self.backbone.architecture["max_sequence_length"]
        check_range("y", places, stop)
        return places.astype("int32")

    def _targets(
        self, examples: Examples, y: Any, sample_weight: Any = None, learn: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if isinstance(examples, ContextWindows) and y is not None:
            y = examples.targets(y)
            weights = checked_weights(sample_weight, len(examples.contexts), ", one per question")
            sample_weight = None if weights is None else weights[examples.questions]
        return super()._targets(examples, y, sample_weight, learn)

    def check_targets(self, examples: Examples, targets: np.ndarray, rows: np.ndarray) -> None:
        beyond = rows[targets[rows].max(axis=1) >= examples.lengths[rows]]
        if len(beyond):
            row = int(beyond[0])
            raise ValueError(
                "`y` must hold positions of tokens, not of padding. "
                f"Received: y[{row}]={targets[row].tolist()} for {examples.lengths[row]} tokens"
            )

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Like `keras.Model.predict`, but also for questions and contexts; see the class.

        Data in memory is predicted in one pass for each padded length: `callbacks` see each pass begin, count its
        batches and end.

        Returns:
            For ready arrays, float32 logits `[examples, 2, length]`. For raw text, a list of float32 logits
            `[2, tokens]` for each question, one per window; `answer` returns answers instead.
        """
        options: dict[str, Any] = {"verbose": verbose, "callbacks": callbacks}
        if not self._is_columns(x):
            return predict_stream(self, x, steps=steps, **options)
        if steps is not None:
            raise ValueError(f"`steps` needs streamed data. Received: steps={steps}")
        examples = self._examples(x)
        if isinstance(examples, ContextWindows):
            windows = self._window_logits(examples, batch_size, **options)
            return [[windows[i] for i in examples.windows_of(q)] for q in range(len(examples.contexts))]
        count, width = np.shape(x["token_ids"])
        logits = np.full((count, 2, width), NOT_THERE, "float32")
        for rows, part in outputs_by_length(self, examples, batch_size, **options):
            logits[rows, :, : part.shape[2]] = part[:, :, :width]
        return logits

    def _window_logits(self, windows: ContextWindows, batch_size: int | None, **options: Any) -> list[np.ndarray]:
        logits: list[Any] = [None] * len(windows.lengths)
        for rows, part in outputs_by_length(self, windows, batch_size, **options):
            for row, outputs in zip(rows, part, strict=True):
                logits[row] = outputs[:, : windows.lengths[row]]
        return logits

    # --- Answers

    def answer(
        self, question: str | Sequence[str], context: str | Sequence[str], batch_size: int | None = None
    ) -> AnswerSpan | list[AnswerSpan]:
        """Return the best answer to a question in a context, or to each of a list.

        Args:
            question: A question, or a list of them.
            context: Its context, of any length, or a list with one context per question.
            batch_size: Windows per batch.

        Returns:
            An `AnswerSpan` or a list of them; its text is `""` if there is no answer; see `null_threshold`.
        """
        single = isinstance(question, str)
        if not (single and isinstance(context, str)) and not (is_list(question) and is_list(context)):
            raise ValueError(
                "`question` and `context` must both be strings, or both be lists. "
                f"Received: {type(question).__name__} and {type(context).__name__}"
            )
        x = ([question], [context]) if single else (list(question), list(context))
        best = [found.best(self.null_threshold) for found in self._search(x, batch_size)]
        return best[0] if single else best

    def find_answers(
        self,
        x: Any,
        batch_size: int | None = None,
        n_best: int = 20,
        max_answer_tokens: int = 30,
        verbose: Any = 0,
    ) -> list[FoundAnswers]:
        """Return the best spans of each question with their probabilities, and its odds of having no answer.

        Args:
            x: Questions and contexts as in the class.
            batch_size: Windows per batch.
            n_best: Number of starts and ends considered per window, and of spans per question.
            max_answer_tokens: Maximum answer length in tokens.
            verbose: As in `predict`.
        """
        check_positive_int(n_best=n_best, max_answer_tokens=max_answer_tokens)
        return list(self._search(x, batch_size, verbose, n_best=n_best, max_answer_tokens=max_answer_tokens))

    def _search(self, x: Any, batch_size: int | None, verbose: Any = 0, **limits: int) -> Iterator[FoundAnswers]:
        """Return what `find_answers` lists, one question at a time: the n-best lists of many would fill the memory."""
        if isinstance(x, dict):
            raise ValueError("`x` must be a tuple (questions, contexts). Received: x of type dict")
        windows = self._examples(x)
        assert isinstance(windows, ContextWindows)
        logits = self._window_logits(windows, batch_size, verbose=verbose)
        return search_answers(windows, logits, self.null_threshold is not None, **limits)

    def score(self, x: Any, answers: Any, batch_size: int | None = None) -> dict[str, float]:
        """Return the official SQuAD 1.1 scores or, if there is a null threshold, the SQuAD 2.0 scores at it.

        Args:
            x: Questions and contexts as in the class.
            answers: The accepted answers to each question.
            batch_size: Windows per batch.
        """
        right = _texts(x, answers)
        texts, odds = texts_and_odds(self._search(x, batch_size))
        if self.null_threshold is None:
            return squad_v1_scores(right, texts)
        return squad_v2_scores(right, texts, odds, self.null_threshold)

    def tune_null_threshold(self, x: Any, answers: Any, batch_size: int | None = None) -> dict[str, float]:
        """Set the null threshold with the best F1, which the model and its presets keep, and return the scores.

        Args:
            x: Questions and contexts of a dev set, as in the class.
            answers: The accepted answers to each question.
            batch_size: Windows per batch.
        """
        right = _texts(x, answers)
        texts, odds = texts_and_odds(self._search(x, batch_size))
        best = squad_v2_scores(right, texts, odds)
        self.null_threshold = best["best_f1_thresh"]
        return squad_v2_scores(right, texts, odds, self.null_threshold)

    # --- Presets and serialisation

    def settings(self) -> dict[str, Any]:
        windows = {} if self.preprocessor is None else _window_options(self.preprocessor.get_config())
        return {"null_threshold": self.null_threshold, **windows}

    @classmethod
    def build_preprocessor(cls, checkpoint: Checkpoint, sequence_length: int | None) -> BertQuestionPreprocessor:
        assert checkpoint.vocabulary is not None
        own = checkpoint.settings if cls.is_own(checkpoint) else {}
        # The length in a foreign preset is the maximum, not the one to use.
        saved = checkpoint.sequence_length if own else None
        if sequence_length is None:
            sequence_length = saved or min(_SEQUENCE_LENGTH, checkpoint.backbone["max_sequence_length"])
        options = {"question_length": 64, **_window_options(own)}
        if sequence_length != saved:
            # A question has at most half of a short window, so that there is room for the context.
            room = max(min(sequence_length // 2, sequence_length - 4), 1)
            options["question_length"] = min(options["question_length"], room)
        tokenizer = BertTokenizer(checkpoint.vocabulary, **checkpoint.tokenizer)
        return BertQuestionPreprocessor(tokenizer, sequence_length, **options)

    @classmethod
    def head_arguments(cls, checkpoint: Checkpoint, arguments: dict[str, Any]) -> dict[str, Any]:
        own = checkpoint.settings if cls.is_own(checkpoint) else {}
        return {"null_threshold": own.get("null_threshold"), **arguments}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "null_threshold": self.null_threshold}


def _check_threshold(null_threshold: Any) -> None:
    number = isinstance(null_threshold, (int, float)) and not isinstance(null_threshold, bool)
    if null_threshold is not None and not (number and abs(null_threshold) <= sys.float_info.max):
        raise ValueError(
            f"`null_threshold` must be a number or None. Received: null_threshold={reprlib.repr(null_threshold)}"
        )


def _texts(x: Any, answers: Any) -> list[list[str]]:
    """Return the texts of answers, given as for `fit` or as strings."""
    if not is_list(answers):
        raise ValueError(
            f"`answers` must be a list with one entry per question. Received: answers of type {type(answers).__name__}"
        )
    if isinstance(x, tuple) and is_list(x[0]) and len(x[0]) != len(answers):
        raise ValueError(
            f"`answers` must have one entry per question, {len(x[0])}. Received: len(answers)={len(answers)}"
        )
    return answer_texts(answers)


def _window_options(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("stride", "question_length") if name in settings}

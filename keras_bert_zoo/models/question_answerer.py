"""Answers that are spans of a context: SQuAD 1.1 and 2.0 (Devlin et al. 2019, sections 4.2 and 4.3)."""

import reprlib
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.metrics.squad import answer_texts, squad_v1_scores, squad_v2_scores
from keras_bert_zoo.models.backbone import BertBackbone, refuse_unknown
from keras_bert_zoo.models.batch_making import checked_weights
from keras_bert_zoo.models.by_length import outputs_by_length, predict_stream
from keras_bert_zoo.models.inputs import as_array
from keras_bert_zoo.models.question_preprocessor import BertQuestionPreprocessor
from keras_bert_zoo.models.streaming import check_ready, is_tf_dataset
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.text import BertTokenizer
from keras_bert_zoo.text.answers import AnswerSpan, FoundAnswers, search_answers
from keras_bert_zoo.text.context_windows import ContextWindows
from keras_bert_zoo.text.packing import Examples
from keras_bert_zoo.training import TokenCrossentropy

# The longest window of run_squad.py; more is seldom better, and slower.
_SEQUENCE_LENGTH = 384
# What padding has for a logit, so that neither the loss nor a prediction depends on how much of it there is.
_NEVER = -1e9


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class SpanCrossentropy(TokenCrossentropy):
    """The mean of the cross-entropies of starts and of ends, a number an example, as weights need it."""

    def __init__(self, name: str = "span_crossentropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.mean(super().call(y_true, y_pred), axis=-1)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertQuestionAnswerer(Task):
    """BERT with two linear outputs a token: where the answer begins and where it ends.

    `x` is a tuple of a list of questions and a list of their contexts, of any length: what is longer than the
    preprocessor's `sequence_length` comes in windows. `y` has a list of answers `(text, start)` for each question, as
    `keras_bert_zoo.data.read_squad` gives them, of which the first is learned; an empty list says that the context has
    no answer. A window that does not hold the answer points at `[CLS]`. `batch_size`, `steps` and `validation_split`
    count windows.

    Padding is no place for an answer, in the loss neither: google-research/bert, which pads all windows to one length,
    and transformers count it among the places, so that there the loss of a window depends on how far it is padded.

    Ready arrays have int targets `[examples, 2]`, the places of the answer's first and last token, and may stream.

    Args:
        backbone: The encoder; it needs no pooler.
        null_threshold: How far the score of no answer must be above the best span's for `""` to be the answer, as
            SQuAD 2.0 has it; see `tune_null_threshold`. None: every context has an answer (SQuAD 1.1).
        preprocessor: What turns raw text into arrays; None takes ready arrays only.

    Returns:
        float32 logits `[batch, 2, length]`, of starts and of ends; -1e9 at padding.

    Example:

    ```python
    train, dev = read_squad("train-v1.1.json"), read_squad("dev-v1.1.json")
    answerer = BertQuestionAnswerer.from_preset("bert_base")
    answerer.fit((train.question, train.context), train.answers, epochs=2)
    answerer.score((dev.question, dev.context), dev.answers)        # {"exact_match": 80.8, "f1": 88.5}
    answerer.answer("Who was Rollo?", "Rollo was a Viking …")       # AnswerSpan("a Viking", 10, 18, 0.9, …)
    ```

    Scores after each epoch: `callbacks=[ValidationScores(lambda model: model.score(dev_x, dev.answers))]`.
    """

    preprocessor_class = BertQuestionPreprocessor
    head_layers = ("spans",)
    label_dimensions = 2
    raw_inputs = "a tuple (questions, contexts)"
    needs_pooler = False

    def __init__(
        self,
        backbone: BertBackbone,
        null_threshold: float | None = None,
        preprocessor: BertQuestionPreprocessor | None = None,
        name: str = "bert_question_answerer",
        **kwargs: Any,
    ) -> None:
        refuse_unknown(type(self).__name__, kwargs, known=("trainable",))
        _check_threshold(null_threshold)
        initializer = keras.initializers.TruncatedNormal(stddev=backbone.architecture["initializer_range"])
        # Float32 whatever the backbone's precision: a loss over half-precision logits loses digits.
        head = keras.layers.Dense(2, kernel_initializer=initializer, dtype="float32", name="spans")
        logits = ops.transpose(head(backbone(backbone.input)["sequence_output"]), (0, 2, 1))
        tokens = ops.expand_dims(ops.cast(backbone.input["padding_mask"], "bool"), 1)
        self.null_threshold = None if null_threshold is None else float(null_threshold)
        super().__init__(backbone, preprocessor, backbone.input, ops.where(tokens, logits, _NEVER), name, **kwargs)

    def compile(self, optimizer: Any = "auto", loss: Any = "auto", metrics: Any = "auto", **kwargs: Any) -> None:
        """As `keras.Model.compile`; what is left out is google-research/bert's (run_squad.py).

        That is AdamW with a peak of 3e-5, 10 % warm-up and linear decay to zero over the run of `fit`, the mean of the
        cross-entropies of starts and of ends, and accuracy, the share of both that are right.
        """
        if loss == "auto":
            loss = SpanCrossentropy()
        if metrics == "auto":
            metrics = None
            kwargs.setdefault("weighted_metrics", [keras.metrics.SparseCategoricalAccuracy(name="accuracy")])
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)

    # --- Raw text and targets

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        places = as_array("y", y)
        if places.shape != (count, 2) or places.dtype.kind not in "iu":
            raise ValueError(
                f"`y` must hold integers of the shape ({count}, 2), first and last token, for ready arrays. "
                f"Received: y.shape={places.shape}, y.dtype={places.dtype}"
            )
        stop = self.backbone.architecture["max_sequence_length"]
        if places.min() < 0 or places.max() >= stop:
            outside = places[(places < 0) | (places >= stop)][0]
            raise ValueError(f"`y` must be in [0, {stop}). Received: y with {outside}")
        return places.astype("int32")

    def _targets(
        self, examples: Examples, y: Any, sample_weight: Any = None, learn: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if y is None:
            raise ValueError("`y` must be given. Received: y=None")
        if isinstance(examples, ContextWindows):
            y = examples.targets(y)
            weights = checked_weights(sample_weight, len(examples.contexts), ", one a question")
            sample_weight = None if weights is None else weights[examples.questions]
        targets, sample_weight = super()._targets(examples, y, sample_weight, learn)
        beyond = np.flatnonzero(targets.max(axis=1) >= examples.lengths)
        if len(beyond):
            row = int(beyond[0])
            raise ValueError(
                "`y` must hold places of tokens, not of padding. "
                f"Received: y[{row}]={targets[row].tolist()} for {examples.lengths[row]} tokens"
            )
        return targets, sample_weight

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if is_tf_dataset(x):
            check_ready(x, "texts")
        return super()._streamed(x, y, sample_weight)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """As `keras.Model.predict`, on questions and contexts too; see the class.

        Returns:
            Of ready arrays float32 logits `[examples, 2, length]`. Of raw text for each question a list of float32
            logits `[2, tokens]`, one for each window; `answer` makes answers of them.
        """
        options: dict[str, Any] = {"verbose": verbose, "callbacks": callbacks}
        if not self._is_columns(x):
            return predict_stream(self, x, steps=steps, **options)
        if steps is not None:
            raise ValueError(f"`steps` needs a data set that streams. Received: steps={steps}")
        examples = self._examples(x)
        if isinstance(examples, ContextWindows):
            windows = self._window_logits(examples, batch_size, **options)
            return [[windows[i] for i in examples.windows_of(q)] for q in range(len(examples.contexts))]
        count, width = np.shape(x["token_ids"])
        logits = np.full((count, 2, width), _NEVER, "float32")
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
        """The best answer to a question in a context, or to each of a list.

        Args:
            question: A question, or a list of them.
            context: Its context, of any length, or a list of as many.
            batch_size: Windows a batch.

        Returns:
            An `AnswerSpan` or a list of them; its text is `""` where `null_threshold` says that there is no answer.
        """
        single = isinstance(question, str)
        if single != isinstance(context, str):
            raise ValueError(
                "`question` and `context` must both be strings, or both be lists. "
                f"Received: {type(question).__name__} and {type(context).__name__}"
            )
        x = ([question], [context]) if single else (list(question), list(context))
        best = [found.best(self.null_threshold) for found in self.find_answers(x, batch_size)]
        return best[0] if single else best

    def find_answers(
        self,
        x: Any,
        batch_size: int | None = None,
        n_best: int = 20,
        max_answer_tokens: int = 30,
        verbose: Any = 0,
    ) -> list[FoundAnswers]:
        """The best spans of each question with their probabilities, and its odds of having no answer.

        Args:
            x: Questions and contexts as in the class.
            batch_size: Windows a batch.
            n_best: Number of starts and ends a window that are looked at, and of spans a question.
            max_answer_tokens: Longest answer in tokens.
            verbose: As in `predict`.
        """
        check_positive_int(n_best=n_best, max_answer_tokens=max_answer_tokens)
        if isinstance(x, dict):
            raise ValueError("`x` must be a tuple (questions, contexts). Received: x of type dict")
        windows = self._examples(x)
        assert isinstance(windows, ContextWindows)
        logits = self._window_logits(windows, batch_size, verbose=verbose)
        return search_answers(windows, logits, self.null_threshold is not None, n_best, max_answer_tokens)

    def score(self, x: Any, answers: Any, batch_size: int | None = None) -> dict[str, float]:
        """The official scores: those of SQuAD 1.1, or with a null threshold those of 2.0 at this threshold.

        Args:
            x: Questions and contexts as in the class.
            answers: For each question the answers that count as right.
            batch_size: Windows a batch.
        """
        right = _texts(x, answers)
        found = self.find_answers(x, batch_size)
        texts = [one.best().text for one in found]
        if self.null_threshold is None:
            return squad_v1_scores(right, texts)
        return squad_v2_scores(right, texts, [one.null_odds for one in found], self.null_threshold)

    def tune_null_threshold(self, x: Any, answers: Any, batch_size: int | None = None) -> dict[str, float]:
        """Take the threshold that gives the best F1, and keep it in the model and its presets; returns the scores.

        Args:
            x: Questions and contexts of a dev set, as in the class.
            answers: For each question the answers that count as right.
            batch_size: Windows a batch.
        """
        right = _texts(x, answers)
        found = self.find_answers(x, batch_size)
        texts, odds = [one.best().text for one in found], [one.null_odds for one in found]
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
        # A length of somebody else's is the longest that there is, not the one to use.
        saved = checkpoint.sequence_length if own else None
        return BertQuestionPreprocessor(
            BertTokenizer(checkpoint.vocabulary, **checkpoint.tokenizer),
            (saved or min(_SEQUENCE_LENGTH, checkpoint.backbone["max_sequence_length"]))
            if sequence_length is None
            else sequence_length,
            **_window_options(own),
        )

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
    """Of answers as `fit` takes them, or of strings."""
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise ValueError(f"`answers` must be a list for each question. Received: {type(answers).__name__}")
    if isinstance(x, tuple) and isinstance(x[0], Sequence) and len(x[0]) != len(answers):
        raise ValueError(f"`answers` must be as many as the questions, {len(x[0])}. Received: {len(answers)}")
    return answer_texts(answers)


def _window_options(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("stride", "question_length") if name in settings}

"""Classification of words, such as named entity recognition (Devlin et al. 2019, section 5.3)."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np

from keras_bert_zoo.checks import check_logits, check_rate
from keras_bert_zoo.layers.dropout import Dropout
from keras_bert_zoo.metrics.spans import entity_scores, find_entities, is_tag
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_task_arguments
from keras_bert_zoo.models.classes import HasClasses, checked_classes
from keras_bert_zoo.models.inputs import as_array, checked_weights
from keras_bert_zoo.models.linear_head import linear_head
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.models.token_weights import LabelledAccuracy, weighed, weighed_in_graph
from keras_bert_zoo.models.trainer.batch_making import first_rows
from keras_bert_zoo.models.trainer.by_length import outputs_by_length, predict_stream
from keras_bert_zoo.models.trainer.streaming import is_mappable, is_tf_dataset
from keras_bert_zoo.models.word_preprocessor import BertWordPreprocessor
from keras_bert_zoo.probabilities import softmax
from keras_bert_zoo.text.packing import Examples, PaddedArrays
from keras_bert_zoo.text.token_batches import TokenBatches
from keras_bert_zoo.text.windows import IGNORED, WordWindows
from keras_bert_zoo.text.words import flat_tags, is_words
from keras_bert_zoo.training import TokenCrossentropy


class Entity(NamedTuple):
    """An entity found by `tag`.

    Attributes:
        text: Its words, or its characters in a raw text.
        label: Its label, such as `"PER"`.
        start: Index of its first character in a raw text, else of its first word in the sentence.
        end: Index after its last character or word.
        score: Mean probability of its words' tags.
    """

    text: str
    label: str
    start: int
    end: int
    score: float


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertTokenClassifier(HasClasses, Task):
    """BERT with a linear layer on each word's first token; other tokens have no label.

    `x` is a list of

    - sentences, each a list of words; `y` has a class for each word, by name or number (-100 if it has no label);
    - documents, each a list of sentences, which share as much document context as fits (section 5.3);
    - texts, which are split into words; `y` has a list of `(start, end, label)` in characters for each text.

    Inputs longer than the preprocessor's `sequence_length` are split into windows that overlap by half. Each word is
    trained and predicted once, in the window where it has the most context. `batch_size` counts windows.

    Ready arrays have `[examples, length]` targets, -100 where a token has no label, and may be streamed. On shuffled
    in-memory data `fit` divides each batch's summed loss by the average number of labelled words per batch, so that
    each word has the same weight. For a streamed or unshuffled batch it divides by the batch's own number.
    `evaluate` returns the mean over all labelled words, except for streamed data.

    By default `compile` has cross-entropy and accuracy. The batches' weights turn Keras' losses and mean metrics into
    means over words: tokens without a tag have class 0 and weight 0, and `metrics` become `weighted_metrics`. Metrics
    that sum weights, such as `MeanIoU`, see the batches' weights.

    Args:
        backbone: The encoder; it needs no pooler.
        num_classes: Number of classes; not needed with `class_names`.
        class_names: Names of the classes, in the order of the logits, such as `["O", "B-PER", "I-PER"]`. Without it,
            `fit` learns the sorted names in the targets.
        dropout: Dropout rate before the linear layer.
        preprocessor: Turns words into arrays; None accepts ready arrays only.

    Returns:
        float32 logits `[batch, length, num_classes]`.

    Example:

    ```python
    train, dev = read_conll("eng.train"), read_conll("eng.testa")
    tagger = BertTokenClassifier.from_preset("bert_base_cased", num_classes=9)
    scores = kbz.metrics.ValidationScores(lambda tagger: tagger.evaluate_entities(*dev.by_document()))
    tagger.fit(*train.by_document(), epochs=3, callbacks=[scores])
    tagger.tag("George Washington went to Washington .")    # [Entity("George Washington", "PER", 0, 17, 0.99), …]
    ```
    """

    preprocessor_class = BertWordPreprocessor
    batches_class = TokenBatches
    head_layers: ClassVar[tuple[str, ...]] = ("classifier",)
    raw_inputs = "a list of sentences, documents or texts"
    raw_in_memory = "words"
    label_dimensions = 2
    weighs_places = True
    needs_pooler = False

    def __init__(
        self,
        backbone: BertBackbone,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        dropout: float = 0.1,
        preprocessor: BertWordPreprocessor | None = None,
        name: str = "bert_token_classifier",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        num_classes = checked_classes(num_classes, class_names)
        check_rate(dropout=dropout)
        head = linear_head(backbone, num_classes, "classifier")
        hidden = Dropout(dropout, dtype="float32", name="classifier_dropout")(self.features(backbone))
        logits = head(hidden)
        self.num_classes = num_classes
        self.class_names = None if class_names is None else list(class_names)
        self.dropout = dropout
        super().__init__(backbone, preprocessor, backbone.input, logits, name, **kwargs)

    def features(self, backbone: BertBackbone) -> Any:
        """Return the linear layer's input, `[batch, length, width]`."""
        return backbone(backbone.input)["sequence_output"]

    def default_loss(self) -> keras.losses.Loss:
        return TokenCrossentropy()

    def default_metrics(self) -> list[Any]:
        return [LabelledAccuracy()]

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Like `keras.Model.predict`, but also for words; see the class.

        Data in memory is predicted in one pass for each padded length: `callbacks` see each pass begin, count its
        batches and end.

        Returns:
            For words, a list of float32 logits `[words, num_classes]` for each sentence, or for documents a list of
            such lists. For ready arrays, `[examples, length, num_classes]`, meaningless at padding.
        """
        options: dict[str, Any] = {"verbose": verbose, "callbacks": callbacks}
        if not self._is_columns(x):
            return predict_stream(self, x, steps=steps, **options)
        if steps is not None:
            batch_size = batch_size or 32
            kept = first_rows(steps, batch_size)
            x = {name: array[kept] for name, array in x.items()} if isinstance(x, dict) else x[kept]
        examples = self._examples(x)
        if not isinstance(examples, WordWindows):
            logits = np.zeros((*np.shape(x["token_ids"]), self.num_classes), "float32")
            for rows, part in outputs_by_length(self, examples, batch_size, **options):
                width = min(part.shape[1], logits.shape[1])
                logits[rows, :width] = part[:, :width]
            return logits
        return examples.words.split(self._word_logits(examples, batch_size, **options))

    def _word_logits(self, examples: WordWindows, batch_size: int | None, **options: Any) -> np.ndarray:
        """Return logits `[words of all examples, num_classes]`."""
        logits = np.empty((len(examples.word_windows), self.num_classes), "float32")
        if not len(logits):
            return logits
        for rows, part in outputs_by_length(self, examples, batch_size, **options):
            words = np.flatnonzero(np.isin(examples.word_windows, rows))
            logits[words] = part[np.searchsorted(rows, examples.word_windows[words]), examples.word_positions[words]]
        return logits

    def tag(self, x: Any, batch_size: int | None = None, verbose: Any = 0) -> list[Any]:
        """Find the entities in raw text or in words.

        Args:
            x: A text, or a list of texts, sentences or documents, as in the class.
            batch_size: Windows per batch.
            verbose: As in `predict`.

        Returns:
            A list of `Entity` for each text or sentence, or a list of such lists for each document. A single text
            gives one list.
        """
        names = self._tag_names()
        single = isinstance(x, str)
        examples = self._word_examples([x] if single else x)
        logits = self._word_logits(examples, batch_size, verbose=verbose)
        check_logits(logits)
        probabilities = softmax(logits)
        words = examples.words
        flat_words = [word for example in words.examples for word in example]
        best = [names[i] for i in probabilities.argmax(-1)]
        found = []
        start = 0
        for number, tags in enumerate(words.by_sentence(best)):
            sure, sentence = probabilities[start : start + len(tags)].max(-1), flat_words[start : start + len(tags)]
            start += len(tags)
            entities = []
            for label, first, last in find_entities(tags):
                score = float(sure[first:last].mean())
                if words.offsets is None or words.texts is None:
                    entities.append(Entity(" ".join(sentence[first:last]), label, first, last, score))
                else:
                    begin, end = words.offsets[number][first][0], words.offsets[number][last - 1][1]
                    entities.append(Entity(words.texts[number][begin:end], label, begin, end, score))
            found.append(entities)
        if words.sentences is None:
            return found[0] if single else found
        sentences = iter(found)
        return [[next(sentences) for _ in document] for document in words.sentences]

    def evaluate_entities(self, x: Any, y: Any, batch_size: int | None = None) -> dict[str, float]:
        """Return precision, recall and F1 of whole entities, as conlleval does.

        `keras_bert_zoo.metrics.entity_scores` computes them. `x` and `y` are words and tags as for `fit`, each
        word with a tag.
        `metrics.ValidationScores` adds the scores to the logs of `fit`.
        """
        names = self._tag_names()
        examples = self._word_examples(x)
        words = examples.words
        true = flat_tags(words, y)
        if not all(isinstance(tag, str) for tag in true):  # Names that the model lacks count as missed.
            true = [names[i] for i in self.number_classes(true)]
        logits = self._word_logits(examples, batch_size, verbose=0)
        check_logits(logits)
        best = [names[i] for i in logits.argmax(-1)]
        return entity_scores(words.by_sentence(true), words.by_sentence(best))

    def _word_examples(self, x: Any) -> WordWindows:
        examples = self._examples(x)
        if not isinstance(examples, WordWindows):
            raise ValueError(f"`x` must be words or texts. Received: x of type {type(x).__name__}")
        return examples

    def _tag_names(self) -> list[str]:
        names = self.class_names
        if names is None or not all(map(is_tag, names)):
            raise ValueError(
                "Entities need `class_names` such as O, B-PER, I-PER; for other tags use `predict`. "
                f"Received: class_names={names}"
            )
        return names

    # --- From the user's data to Keras' batches

    def _is_columns(self, x: Any) -> bool:
        if isinstance(x, tuple):
            raise ValueError("`x` must be a list of sentences, documents or texts. Received: a tuple")
        return isinstance(x, dict) or is_words(x) or super()._is_columns(x)

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None, needs_targets: bool = False) -> Any:
        data = super()._streamed(x, y, sample_weight, needs_targets)
        if is_tf_dataset(x):
            return data.map(weighed_in_graph)
        if not is_mappable(x):
            raise ValueError(
                "`x` must be a tf.data.Dataset, a PyDataset, a generator or a DataLoader if it is streamed. "
                f"Received: x of type {type(x).__name__}"
            )
        return data

    def ready_batch(self, batch: Any) -> tuple[Any, ...]:
        inputs, *rest = super().ready_batch(batch)
        return (inputs, *weighed(*rest)) if rest and self.are_labels(rest[0]) else (inputs, *rest)

    def _count_examples(self, examples: Examples) -> int:
        # An example without words has no window.
        return len(examples.words.examples) if isinstance(examples, WordWindows) else super()._count_examples(examples)

    def _targets(
        self, examples: Examples, y: Any, sample_weight: Any = None, learn: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if isinstance(examples, PaddedArrays):
            return super()._targets(examples, y, sample_weight, learn)
        assert isinstance(examples, WordWindows)
        if not len(examples.lengths):
            raise ValueError("`x` must hold at least one example with words. Received: none")
        if y is None:
            raise ValueError("`y` must be given. Received: y=None")
        weights = checked_weights(sample_weight, len(examples.words.examples))
        targets = examples.lay(self._word_classes(flat_tags(examples.words, y), learn))
        self.check_loss(targets)
        return targets, None if weights is None else weights[examples.examples]

    def _word_classes(self, tags: list[Any], learn: bool) -> np.ndarray:
        """Return the class of each word, and `IGNORED` where that stands in place of one."""
        labelled = np.array([not isinstance(tag, (int, np.integer)) or tag != IGNORED for tag in tags])
        classes = np.full(len(tags), IGNORED, "int32")
        classes[labelled] = self.number_classes([tags[i] for i in np.flatnonzero(labelled)], learn)
        return classes

    def check_targets(self, examples: Any, targets: np.ndarray, rows: np.ndarray) -> None:
        if targets.shape != examples.arrays["token_ids"].shape:
            raise ValueError(
                f"`y` must have the shape {examples.arrays['token_ids'].shape}, as `token_ids`. "
                f"Received: y.shape={targets.shape}"
            )
        padding = np.arange(targets.shape[1]) >= examples.lengths[rows, None]
        if (targets[rows][padding] != IGNORED).any():
            raise ValueError(f"`y` must be {IGNORED} at padding. Received: a label at padding")

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        labels = as_array("y", y)
        if labels.ndim != 2 or len(labels) != count:
            raise ValueError(
                f"`y` must have the shape ({count}, length) for ready arrays. Received: y.shape={labels.shape}"
            )
        labelled = labels != IGNORED
        encoded = np.full(labels.shape, IGNORED, "int32")
        if labelled.any():
            encoded[labelled] = self.number_classes(labels[labelled])
        return encoded

    def weigh_classes(self, targets: np.ndarray, class_weight: dict[Any, float]) -> np.ndarray:
        return np.where(targets == IGNORED, 0, self.class_weights(class_weight)[np.maximum(targets, 0)])

    def head_config(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "class_names": self.class_names, "dropout": self.dropout}

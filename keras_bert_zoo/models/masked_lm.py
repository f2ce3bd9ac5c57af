"""Language models: pre-training without pairs, and filling in masks (Devlin et al. 2019, sections 3.1 and 5.1)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_bert_zoo.checks import check_positive_int
from keras_bert_zoo.layers.heads import MaskedLMHead, VocabularyBias
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.backbone_checks import check_task_arguments
from keras_bert_zoo.models.inputs import check_position_array, check_range
from keras_bert_zoo.models.preprocessor import BertPreprocessor
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.models.trainer.streaming import checked_stream, is_stream, is_tf_dataset
from keras_bert_zoo.models.trainer.tf_streams import check_pretraining, check_ready
from keras_bert_zoo.probabilities import softmax
from keras_bert_zoo.text.batching import PartedBatches
from keras_bert_zoo.text.texts import split_texts
from keras_bert_zoo.text.tokenizer import SPECIAL_TOKENS
from keras_bert_zoo.training import TokenCrossentropy
from keras_bert_zoo.training.distribution import check_calls_python, check_one_process, replicas

MASK_POSITIONS = "mask_positions"
MASK = SPECIAL_TOKENS[-1]


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertMaskedLM(Task):
    """BERT that predicts masked tokens, or each next token with a causal backbone (transformers' `BertLMHeadModel`).

    The output embedding is the token embedding, and only the requested positions are computed.

    `fit` and `evaluate` take `keras_bert_zoo.pretraining.PretrainingBatches`, or any dataset of such batches. The loss
    is a mean over all `mask_positions`, those that only fill a row up included. So weights of 0 and 1, as in
    google-research/bert, must be multiplied by their size / their sum, which makes them average 1 over the batch.
    Otherwise the loss and its gradient are too small by the share that is filled up.

    Args:
        backbone: The encoder.
        preprocessor: Turns raw text into arrays, for `fill_mask`.

    Inputs:
        The backbone's inputs, and `mask_positions`, int32 `[batch, predictions]`.

    Returns:
        A dict of `mlm`, float32 logits `[batch, predictions, vocabulary_size]`.

    Example:

    ```python
    model = BertMaskedLM.from_preset("bert_base")
    model.fill_mask("paris is the [MASK] of france.")       # [[("capital", 0.99), …]]
    ```
    """

    preprocessor_class = BertPreprocessor
    head_layers: ClassVar[tuple[str, ...]] = ("mlm_head", "mlm_bias")
    needs_pooler = False
    weighs_places = True
    peak, warmup = 1e-4, 0.01

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertPreprocessor | None = None,
        name: str = "bert_masked_lm",
        **kwargs: Any,
    ) -> None:
        check_task_arguments(self, backbone, kwargs)
        inputs = {**backbone.input, MASK_POSITIONS: keras.Input((None,), dtype="int32", name=MASK_POSITIONS)}
        super().__init__(backbone, preprocessor, inputs, self.build_heads(backbone, inputs), name, **kwargs)

    def build_heads(self, backbone: BertBackbone, inputs: dict[str, Any]) -> dict[str, Any]:
        """Build the outputs from the inputs."""
        outputs = backbone(backbone.input, output_positions=inputs[MASK_POSITIONS])
        return {"mlm": masked_lm_logits(backbone, outputs["sequence_output"])}

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = None,
        weighted_metrics: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Like `keras.Model.compile`, with the paper's defaults (Devlin et al. 2019, A.2).

        These are AdamW with a peak learning rate of 1e-4, 1 % warm-up and linear decay to zero over the run of `fit`,
        cross-entropy, and accuracy if there is a loss. Positions without a prediction have token 0 and weight 0, and
        `metrics` become `weighted_metrics`.
        """
        if loss == "auto":  # The batches' weights make it a mean over predictions; the losses are summed.
            loss = {output: TokenCrossentropy() for output in self.output}
        if isinstance(metrics, str) and metrics == "auto":
            metrics = None
        if weighted_metrics == "auto":
            accuracies = {output: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for output in self.output}
            weighted_metrics = accuracies if metrics is None and loss is not None else None
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, weighted_metrics=weighted_metrics, **kwargs)

    def check_inputs(self, inputs: Any) -> None:
        if not isinstance(inputs, dict) or MASK_POSITIONS not in inputs:
            received = sorted(map(str, inputs)) if isinstance(inputs, dict) else type(inputs).__name__
            raise ValueError(f"Inputs must have `{MASK_POSITIONS}` beside the backbone's. Received: {received}")
        self.backbone.check_inputs({name: array for name, array in inputs.items() if name != MASK_POSITIONS})
        check_position_array(MASK_POSITIONS, inputs[MASK_POSITIONS], inputs["token_ids"].shape)

    def _is_columns(self, x: Any) -> bool:
        return False

    def _validation(self, data: Any, batch_size: int | None, steps: int | None) -> Any:
        if isinstance(data, (tuple, list, dict)):
            raise ValueError(
                "`validation_data` must be PretrainingBatches, or a data set of such batches. "
                f"Received: validation_data of type {type(data).__name__}"
            )
        return super()._validation(data, batch_size, steps)

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None, needs_targets: bool = False) -> Any:
        if not is_stream(x):
            raise ValueError(
                "`x` must be PretrainingBatches, or a data set of such batches, not texts. "
                f"Received: x of type {type(x).__name__}"
            )
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"`{name}` must be None, as batches hold it. Received: {name} of type {type(value).__name__}"
                )
        if isinstance(x, PartedBatches):
            self.check_batches(x)
        if is_tf_dataset(x):
            check_ready(x, "PretrainingBatches")
            x = check_pretraining(x, self, needs_targets)
        elif not isinstance(x, PartedBatches):  # Ours are checked already.
            x = checked_stream(x, self, needs_targets)
        return self._fed(x)

    def ready_batch(self, batch: Any) -> tuple[Any, ...]:
        inputs, targets, weights = self._checked_parts(batch)
        if targets is None:
            return (inputs,)
        ends = {"mlm": self.backbone.architecture["vocabulary_size"], "nsp": 2}
        for name, values in targets.items() if isinstance(targets, dict) else ():
            if name not in self.output:
                raise ValueError(f"`y` must be a dict of {', '.join(self.output)}. Received: a target {name!r}")
            check_range(name, keras.ops.convert_to_numpy(values), ends[name])
        return (inputs, targets, *weights)

    def check_batches(self, x: Any, name: str = "x") -> None:
        """Raise a `ValueError` if `PretrainingBatches`, the argument `name`, do not fit this model."""
        if isinstance(x, PartedBatches):
            check_calls_python(self)
            check_one_process()
        architecture, pairs = self.backbone.architecture, "nsp" in self.output
        self.check_pairs(x.pairs)
        if x.next_token is not architecture["causal"]:  # A bidirectional backbone would see its targets.
            raise ValueError(
                f"`{name}` must be PretrainingBatches(next_token={architecture['causal']}) for a backbone with "
                f"causal={architecture['causal']}. Received: next_token={x.next_token}"
            )
        if x.next_sentence is not pairs:
            raise ValueError(
                f"`{name}` must be PretrainingBatches(next_sentence={pairs}) for a {type(self).__name__}. "
                f"Received: next_sentence={x.next_sentence}"
            )
        for what, size, limit in (
            ("vocabulary", x.tokenizer.vocabulary_size, architecture["vocabulary_size"]),
            ("sequence_length", x.sequence_length, architecture["max_sequence_length"]),
        ):
            if size > limit:
                raise ValueError(f"`{name}` must have a {what} of at most {limit}, the backbone's. Received: {size}")
        parts = replicas(self)
        if x.batch_size % parts:
            raise ValueError(
                f"`batch_size` must be divisible by the number of replicas, {parts}. "
                f"Received: batch_size={x.batch_size}"
            )

    def fill_mask(self, texts: str | Sequence[str], top_k: int = 5, batch_size: int = 32) -> list[Any]:
        """Return the most probable tokens for each `[MASK]` in a text.

        Args:
            texts: A text, or a list of them; each must contain `[MASK]`.
            top_k: Number of tokens per `[MASK]`.
            batch_size: Texts per batch.

        Returns:
            For each text, a list that has for each `[MASK]` a list of `top_k` pairs of token and probability, best
            first. For a single string, only its own list.
        """
        if self.preprocessor is None:
            raise ValueError("`fill_mask` needs a preprocessor. Received: a model with preprocessor=None")
        if self.backbone.architecture["causal"]:
            raise ValueError("`fill_mask` needs a backbone that sees both sides of a blank. Received: causal=True")
        tokenizer = self.preprocessor.tokenizer
        check_positive_int(top_k=top_k, batch_size=batch_size)
        if top_k > tokenizer.vocabulary_size:
            raise ValueError(f"`top_k` must be at most {tokenizer.vocabulary_size}. Received: top_k={top_k}")
        if isinstance(texts, str):
            return self._fill([texts], top_k)[0]
        given, _ = split_texts(list(texts) if isinstance(texts, tuple) else texts, "texts")
        return [
            masks
            for start in range(0, len(given), batch_size)
            for masks in self._fill(given[start : start + batch_size], top_k)
        ]

    def _fill(self, texts: Sequence[str], top_k: int) -> list[list[list[tuple[str, float]]]]:
        assert self.preprocessor is not None
        tokenizer = self.preprocessor.tokenizer
        arrays = self.preprocessor(texts)
        masks = arrays["token_ids"] == tokenizer.mask_token_id
        counts = masks.sum(axis=1)
        lost = [text for text, count in zip(texts, counts, strict=True) if count < max(text.count(MASK), 1)]
        if lost:
            raise ValueError(
                f"`texts` must each hold {MASK}, all within the preprocessor's sequence_length. "
                f"Received: {lost[0][:80]!r}"
            )
        positions = np.argsort(~masks, axis=1, kind="stable")[:, : counts.max()].astype("int32")
        inputs = {**arrays, MASK_POSITIONS: positions}
        short = -len(texts) % replicas(self)  # Devices take parts of equal size.
        inputs = {name: np.pad(array, ((0, short), (0, 0)), "edge") for name, array in inputs.items()}
        logits = self.predict_fed(inputs, batch_size=len(texts) + short, verbose=0)["mlm"]
        # The embedding may have more rows than there are tokens.
        probabilities = softmax(logits[..., : tokenizer.vocabulary_size])
        best = np.argsort(-probabilities, axis=-1, kind="stable")[..., :top_k]
        return [
            [
                [(tokenizer.vocabulary[i], float(probabilities[row, mask, i])) for i in best[row, mask]]
                for mask in range(count)
            ]
            for row, count in enumerate(counts)
        ]


def masked_lm_logits(backbone: BertBackbone, hidden: Any) -> Any:
    """Return float32 logits `[batch, predictions, vocabulary_size]` of the backbone's outputs at masked tokens."""
    config = backbone.architecture
    head = MaskedLMHead(
        config["hidden_dim"],
        config["activation"],
        config["layer_norm_epsilon"],
        config["initializer_range"],
        dtype=backbone.embeddings.dtype_policy,
        name="mlm_head",
    )
    logits = backbone.embeddings.token_embedding(head(hidden), reverse=True)
    return VocabularyBias(name="mlm_bias")(logits)

"""BERT without a head."""

import os
from contextlib import suppress
from typing import Any

import keras

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.checks import check_flag, check_positive_int, refuse_unknown
from keras_bert_zoo.layers import BertEmbeddings, EncoderLayer
from keras_bert_zoo.layers.dense import Dense
from keras_bert_zoo.layers.initializer import Normal, weights_are_loaded
from keras_bert_zoo.layers.passes import WalksOnce, torch_compiles
from keras_bert_zoo.layers.positions import count_of
from keras_bert_zoo.models.encoding import encode, outputs_of
from keras_bert_zoo.models.exporting import Exports
from keras_bert_zoo.models.extractor import BertExtractor
from keras_bert_zoo.models.frozen import freeze_again, frozen_weights
from keras_bert_zoo.models.inputs import (
    INPUT_NAMES,
    ChecksInputs,
    as_output_positions,
    check_structure,
    check_values,
    is_numpy,
)
from keras_bert_zoo.models.loading import LoadReport, arrays_of, load_arrays
from keras_bert_zoo.models.quantized import quantize_again, quantized_layers
from keras_bert_zoo.presets import load_preset, save_preset


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertBackbone(Exports, ChecksInputs, WalksOnce, keras.Model):
    """The Transformer encoder of BERT (Devlin et al. 2019, section 3).

    Args:
        vocabulary_size: Number of tokens.
        num_layers: Number of encoder blocks.
        num_heads: Number of attention heads per block; divides `hidden_dim`.
        hidden_dim: Width of the encoder.
        intermediate_dim: Width of the feed-forward layers.
        dropout: Dropout rate of embeddings and sub-layers.
        attention_dropout: Dropout rate of the attention probabilities.
        max_sequence_length: Number of positions, the maximum input length in tokens.
        num_segments: Number of segment types.
        activation: `"gelu"` (exact), `"gelu_new"` or `"gelu_pytorch_tanh"` (tanh form), `"relu"`, `"silu"` or
            `"swish"`, `"tanh"`.
        layer_norm_epsilon: Added to the variance.
        initializer_range: Standard deviation of the truncated normal initializer.
        pooler: Whether to add a pooler.
        causal: If True, a token attends only to itself and earlier tokens (the paper's left-to-right ablation).
        dtype: Precision policy, such as `"mixed_bfloat16"`; None uses Keras' global policy.

    Inputs:
        A dict of `token_ids`, `segment_ids` and `padding_mask` (1 at tokens, 0 at padding), int32 `[batch, length]`.

    Call arguments:
        output_positions: Where to compute outputs: an int (the same position of each text), integers `[batch, n]`, or
            None (everywhere). At other positions the last block computes only queries, keys and values, and for an int
            not even those. A causal backbone saves this work for an int only.

    Attributes:
        embeddings: The embedding layer.
        encoder_layers: The blocks, first to last; set `trainable = False` on a block to freeze it.
        pooler_layer: The pooler, or None.
        load_report: What `from_preset` loaded, or None.

    Returns:
        A dict of `sequence_output`, `[batch, length, hidden_dim]`, and, with a pooler, `pooled_output`,
        `[batch, hidden_dim]`, from the first position of `sequence_output`. With `output_positions`, `sequence_output`
        is `[batch, n, hidden_dim]`, in their order.

    Example:

    ```python
    backbone = BertBackbone.from_preset("bert_tiny", load_weights=False)
    outputs = backbone({"token_ids": ids, "segment_ids": segments, "padding_mask": mask})
    ```
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        pooler: bool = True,
        causal: bool = False,
        dtype: Any = None,
        name: str = "bert_backbone",
        **kwargs: Any,
    ) -> None:
        refuse_unknown(type(self).__name__, kwargs, known=("trainable",))
        check_positive_int(num_layers=num_layers)
        check_flag(pooler=pooler)  # The layers check the rest, under the same names.

        # --- Layers
        embeddings = BertEmbeddings(
            vocabulary_size,
            hidden_dim,
            max_sequence_length,
            num_segments,
            dropout,
            layer_norm_epsilon,
            initializer_range,
            dtype=dtype,
            name="embeddings",
        )
        encoder_layers = [
            EncoderLayer(
                hidden_dim,
                num_heads,
                intermediate_dim,
                activation,
                dropout,
                attention_dropout,
                layer_norm_epsilon,
                causal,
                initializer_range,
                dtype=dtype,
                name=f"encoder_layer_{i}",
            )
            for i in range(num_layers)
        ]
        initializer = Normal(stddev=initializer_range)
        pooler_layer = Dense(hidden_dim, activation="tanh", kernel_initializer=initializer, dtype=dtype, name="pooler")

        # --- Model
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUT_NAMES}
        hidden = embeddings(inputs["token_ids"], inputs["segment_ids"])
        for layer in encoder_layers:
            hidden = layer(hidden, inputs["padding_mask"])
        outputs = {"sequence_output": hidden}
        if pooler:
            with weights_are_loaded(False):  # A checkpoint may lack it.
                outputs["pooled_output"] = pooler_layer(hidden[:, 0])
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        for layer in self.layers:  # Keras' constructor sets the flag before it tracks the layers.
            layer.trainable = self.trainable

        # --- Config
        self.embeddings = embeddings
        self.encoder_layers = encoder_layers
        self.pooler_layer = pooler_layer if pooler else None
        self.load_report: LoadReport | None = None
        self._lora_rank: int | None = None
        self._config: dict[str, Any] = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "max_sequence_length": max_sequence_length,
            "num_segments": num_segments,
            "activation": activation,
            "layer_norm_epsilon": layer_norm_epsilon,
            "initializer_range": initializer_range,
            "pooler": pooler,
            "causal": causal,
        }

    def __call__(self, inputs: Any, output_positions: Any = None, **options: Any) -> Any:
        if output_positions is not None:
            check_structure(inputs, self._config["max_sequence_length"])
            options["output_positions"] = as_output_positions(output_positions, inputs["token_ids"].shape)
        return super().__call__(inputs, **options)

    def call(self, inputs: Any, output_positions: Any = None, training: bool | None = None, mask: Any = None) -> Any:
        if torch_compiles():
            from keras_bert_zoo.layers.torch_compiled import NotTracedError, outputs_of_program

            name, data = f"the encoder, training={training}", {**inputs, "output_positions": output_positions}
            with suppress(NotTracedError):
                return outputs_of_program(self, name, lambda data: self._encode(training=training, **data), data)
        if output_positions is None:
            return super().call(inputs, training=training, mask=mask)
        return self._encode(output_positions, training, **inputs)

    def _encode(self, output_positions: Any, training: bool | None, **inputs: Any) -> Any:
        states, _ = encode(self, inputs, output_positions, training)
        return outputs_of(self, states[-1])

    def compute_output_spec(
        self, inputs: Any, output_positions: Any = None, training: bool | None = None, mask: Any = None
    ) -> Any:
        if output_positions is None:
            return super().compute_output_spec(inputs, training=training, mask=mask)
        batch, width = inputs["token_ids"].shape[0], self._config["hidden_dim"]
        shapes = {"sequence_output": (batch, count_of(output_positions), width), "pooled_output": (batch, width)}
        return {name: keras.KerasTensor(shapes[name], dtype=spec.dtype) for name, spec in self.output.items()}

    @property
    def architecture(self) -> dict[str, Any]:
        """The constructor's arguments, without `dtype` and `name`."""
        return dict(self._config)

    def check_inputs(self, inputs: Any) -> None:
        """Raise a `ValueError` for invalid inputs; values are checked in NumPy arrays only."""
        check_structure(inputs, self._config["max_sequence_length"])
        if is_numpy(inputs):
            check_values(inputs, self._config["vocabulary_size"], self._config["num_segments"])

    def extractor(self, hidden_states: bool = True, attention_scores: bool = False) -> BertExtractor:
        """Return a model with the same weights that also outputs hidden states or attention probabilities.

        Args:
            hidden_states: Add `hidden_states`, a list of the embeddings and every block's output, each
                `[batch, length, hidden_dim]`.
            attention_scores: Add `attention_scores`, a list of every block's attention probabilities, each
                `[batch, heads, length, length]`; this disables fused attention.
        """
        return BertExtractor(self, hidden_states, attention_scores, name=f"{self.name}_extractor")

    def enable_lora(self, rank: int) -> None:
        """Train only low-rank updates of the attention's query, key and value projections (Hu et al. 2021).

        All other weights of the backbone are frozen, including LayerNorms and pooler; a task's head stays trainable.
        The three projections share one kernel, `[hidden_dim, 3 * hidden_dim]`, and get one pair of factors,
        `[hidden_dim, rank]` and `[rank, 3 * hidden_dim]`: as many weights as the paper's pairs for query and value.
        The product of the factors is added without scaling. Weight decay also applies to the factors.

        Call it before the first `fit`, or `compile` again afterwards. `save` keeps the factors, so that training can
        continue; `save_to_preset` merges them into the kernels and writes an ordinary preset.

        Args:
            rank: Rank of the updates, at most `hidden_dim`.

        Example:

        ```python
        classifier = BertTextClassifier.from_preset("bert_base", num_classes=2)
        classifier.backbone.enable_lora(8)
        classifier.compile(kbz.AdamW(kbz.WarmupPolynomialDecay(5e-4)))  # A higher learning rate for LoRA.
        classifier.fit(texts, labels)
        ```
        """
        check_positive_int(rank=rank)
        if rank > self._config["hidden_dim"]:
            raise ValueError(f"`rank` must be at most hidden_dim={self._config['hidden_dim']}. Received: rank={rank}")
        if self._lora_rank is not None:
            raise ValueError(f"LoRA is enabled already, with rank={self._lora_rank}. Received: rank={rank}")
        self.trainable = True  # Keras checks a layer's flag before its weights'.
        for weight in self.weights:
            weight.trainable = False
        for layer in self.encoder_layers:
            layer.attention.qkv.enable_lora(rank)
        self._lora_rank = rank

    def get_config(self) -> dict[str, Any]:
        policy = keras.dtype_policies.get(self.embeddings.dtype_policy)
        adapted = next((layer for layer in self._flatten_layers() if getattr(layer, "lora_enabled", False)), None)
        if adapted is not None and self._lora_rank is None:  # These factors could not be restored.
            raise ValueError(
                f"LoRA must be enabled by the backbone's `enable_lora`. Received: {adapted.path} with its own"
            )
        without = (BertBackbone, keras.layers.InputLayer)  # They have no precision of their own.
        parts = (layer for layer in self._flatten_layers() if not isinstance(layer, without))
        other = next(
            (each for each in parts if each.dtype_policy.name != policy.name and each.quantization_mode is None), None
        )
        if other is not None:  # This precision could not be restored either.
            raise ValueError(
                "Layers of other precision must be given by a DTypePolicyMap as `dtype`. "
                f"Received: {other.path} with {other.dtype_policy.name}"
            )
        return {
            **self._config,
            **({} if self._lora_rank is None else {"lora_rank": self._lora_rank}),
            **quantized_layers(self),
            **frozen_weights(self),
            "dtype": keras.dtype_policies.serialize(policy),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "BertBackbone":
        config = dict(config)
        if isinstance(config.get("dtype"), dict):
            config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        lora_rank, frozen = config.pop("lora_rank", None), config.pop("frozen", None)

        def build(**arguments: Any) -> "BertBackbone":
            backbone = cls(**arguments)
            if lora_rank is not None:
                backbone.enable_lora(lora_rank)
                if not arguments.get("trainable", True):  # Frozen after LoRA was enabled.
                    backbone.trainable = False
            return backbone

        return freeze_again(quantize_again(build, config), frozen)

    @classmethod
    def from_preset(cls, preset: str | os.PathLike[str], load_weights: bool = True, **overrides: Any) -> "BertBackbone":
        """Build a backbone from a preset.

        Args:
            preset: A name (`"bert_base"`), a directory (ours, Hugging Face's, keras-hub's,
                sentence-transformers' or google-research/bert's), or `"hf://org/name[@revision]"`.
            load_weights: False keeps the initial weights; a name then needs no network access.
            **overrides: Constructor arguments that override the preset's.

        Raises:
            ValueError: The preset is not found or not supported, or a weight is missing or has another shape.
        """
        checkpoint = load_preset(preset, load_weights)
        with weights_are_loaded(load_weights):
            backbone = cls(**{**checkpoint.backbone, **overrides})
        if load_weights:
            backbone.load_report = load_arrays(backbone, checkpoint)
        return backbone

    def save_to_preset(self, path: str | os.PathLike[str]) -> None:
        """Write a preset directory that transformers can also open; on failure nothing is written.

        It replaces a preset that is there. A backbone knows no vocabulary, so none is left there: a task saves its own.
        """
        save_preset(path, Checkpoint("BertBackbone", self.architecture, arrays=arrays_of(self)))

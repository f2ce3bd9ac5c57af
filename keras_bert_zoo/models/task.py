"""Base class of all tasks: backbone, preprocessor, head, and loading and saving of presets."""

import inspect
import logging
import os
import warnings
from functools import partial
from typing import Any, ClassVar, Self

import keras

from keras_bert_zoo.checkpoints import Checkpoint, huggingface
from keras_bert_zoo.checks import refuse_unknown
from keras_bert_zoo.layers.initializer import weights_are_loaded
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.exporting import Exports
from keras_bert_zoo.models.frozen import freeze_again, frozen_weights
from keras_bert_zoo.models.loading import LoadReport, arrays_of, load_arrays
from keras_bert_zoo.models.quantized import quantize_again, quantized_layers
from keras_bert_zoo.models.trainer.feeding import FedModel
from keras_bert_zoo.presets import load_preset, save_preset
from keras_bert_zoo.text import BertTokenizer
from keras_bert_zoo.training import AdamW, LossScaleOptimizer, WarmupPolynomialDecay
from keras_bert_zoo.training.logits import loss_of_logits, metric_of_logits

_logger = logging.getLogger("keras_bert_zoo")


class Task(Exports, FedModel):
    """A backbone, a head and a preprocessor.

    A subclass builds its head, calls `super().__init__` with the functional inputs and outputs, and defines how
    targets are encoded, its default loss and metrics and the names of its head layers.
    """

    preprocessor_class: ClassVar[Any]
    head_layers: ClassVar[tuple[str, ...]]
    """Layers whose weights may be missing from a preset. The pooler's may be as well: some released models lack it."""
    needs_pooler: ClassVar[bool] = True
    peak: ClassVar[float] = 3e-5
    """Default peak learning rate of `compile`, from the paper (Devlin et al. 2019, A.3)."""
    warmup: ClassVar[float] = 0.1
    """Share of a run's updates spent warming up (google-research/bert, run_classifier.py and run_squad.py)."""
    weighs_places: ClassVar[bool] = False
    """Whether sample weights mark which positions hold targets."""
    activation: ClassVar[Any] = "softmax"
    """Turns the outputs into probabilities, `"softmax"` or `"sigmoid"`; None if they are not logits of classes."""

    def __init__(
        self, backbone: BertBackbone, preprocessor: Any, inputs: Any, outputs: Any, name: str, **kwargs: Any
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.load_report: LoadReport | None = None
        if preprocessor is not None:
            _check_kind(preprocessor, self.preprocessor_class)
            check_preprocessor(preprocessor, backbone)
        self._compile_with()

    def _compile_with(self, **arguments: Any) -> bool:
        """Call `compile`, or our class' own if a subclass' does not take these arguments; return whether it does."""
        try:
            inspect.signature(self.compile).bind(**arguments)
        except TypeError:
            ours: Any = next(each for each in type(self).__mro__ if _is_ours(each) and "compile" in vars(each))
            ours.compile(self, **arguments)
            return False
        self.compile(**arguments)
        return True

    def compile(
        self,
        optimizer: Any = "auto",
        loss: Any = "auto",
        metrics: Any = "auto",
        *,
        auto_scale_loss: bool = True,
        **kwargs: Any,
    ) -> None:
        """Like `keras.Model.compile`, with the paper's defaults (Devlin et al. 2019, A.3) and its code's warm-up.

        These are AdamW with the task's `peak` learning rate, which is 3e-5 unless it states another, 10 % warm-up and
        linear decay to zero over the run of `fit`, and the task's `default_loss` and `default_metrics`. Outputs of
        classes are logits: losses and metrics given by name are computed from logits.
        """
        if optimizer == "auto":
            optimizer = AdamW(WarmupPolynomialDecay(self.peak, self.warmup))
        if loss == "auto":
            loss = self.default_loss()
        if metrics == "auto":
            metrics = None
            # Weighted, so that the copies that fill up a batch under a distribution do not count.
            kwargs.setdefault("weighted_metrics", self.default_metrics())
        kwargs["metrics"] = metrics
        # Keras scales the loss if the model's own policy is mixed_float16; here the backbone's layers have that policy.
        layers = self.backbone._flatten_layers()  # Each may have a policy of its own.
        half_precision = any(layer.compute_dtype == "float16" != layer.variable_dtype for layer in layers)
        is_scaled = optimizer is None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if half_precision and auto_scale_loss and not is_scaled:
            optimizer = LossScaleOptimizer(keras.optimizers.get(optimizer))
        loss = keras.tree.map_structure(loss_of_logits, loss)
        if self.weighs_places and kwargs.get("metrics"):
            if kwargs.get("weighted_metrics"):
                raise ValueError(
                    f"`metrics` and `weighted_metrics` exclude each other in a {type(self).__name__}, where places "
                    "without a target have weight 0. Received: both"
                )
            kwargs["weighted_metrics"] = kwargs.pop("metrics")
        if self.activation is not None:
            of_logits = partial(metric_of_logits, activation=self.activation)
            given = {name: kwargs[name] for name in ("metrics", "weighted_metrics") if kwargs.get(name)}
            kwargs |= keras.tree.map_structure(of_logits, given)
        super().compile(optimizer=optimizer, loss=loss, auto_scale_loss=False, **kwargs)
        # Where None is given, Keras keeps what was compiled before, which here would be the constructor's defaults.
        if loss is None:
            self._compile_loss = self.loss = None
        if kwargs.get("metrics") is None and kwargs.get("weighted_metrics") is None:
            self._compile_metrics = None
        self._given_jit_compile = kwargs.get("jit_compile", "auto")

    # --- Defined by subclasses

    def default_loss(self) -> Any:
        """Return the loss of `compile` if none is given."""
        return None

    def default_metrics(self) -> Any:
        """Return the metrics of `compile` if none are given; they are weighted."""
        return None

    def head_config(self) -> dict[str, Any]:
        """Return the head's config, as a preset stores it."""
        return {}

    @classmethod
    def read_preset(cls, preset: str | os.PathLike[str], load_weights: bool) -> Checkpoint:
        """Read a preset for this task."""
        return load_preset(preset, load_weights)

    @classmethod
    def head_arguments(cls, checkpoint: Checkpoint, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the head's constructor arguments: the caller's override the preset's."""
        return {**(checkpoint.head if cls.is_own(checkpoint) else {}), **arguments}

    @classmethod
    def is_own(cls, checkpoint: Checkpoint) -> bool:
        """Whether this task wrote the preset; the heads of several tasks have the same names."""
        return checkpoint.class_name in {parent.__name__ for parent in cls.__mro__}

    @classmethod
    def preset_class(cls) -> str:
        """Return the class name for a preset: this class, or for a user's subclass the nearest known parent."""
        known = [parent.__name__ for parent in cls.__mro__ if parent.__name__ in huggingface.ARCHITECTURES]
        if not known:
            raise ValueError(
                f'A preset cannot store the head of your own task: use save(".keras"). Received: {cls.__name__}'
            )
        return known[0]

    def settings(self) -> dict[str, Any]:
        """Return the task's settings beyond the head, as JSON values; only our own presets store them."""
        return {}

    @classmethod
    def build_preprocessor(cls, checkpoint: Checkpoint, sequence_length: int | None) -> Any:
        """Build the preprocessor of a preset that has a vocabulary."""
        assert checkpoint.vocabulary is not None
        return cls.preprocessor_class(
            BertTokenizer(checkpoint.vocabulary, **checkpoint.tokenizer),
            (checkpoint.sequence_length or checkpoint.backbone["max_sequence_length"])
            if sequence_length is None
            else sequence_length,
        )

    def continues(self, checkpoint: Checkpoint) -> bool:
        """Whether the preset's head and this task's head have the same meaning."""
        return True

    # --- Presets and serialisation

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike[str],
        load_weights: bool = True,
        dtype: Any = None,
        sequence_length: int | None = None,
        **arguments: Any,
    ) -> Self:
        """Build a task from a preset.

        The head is loaded if the preset has one. Otherwise it is freshly initialised, and the log says so.
        `task.load_report` lists what was loaded.

        Args:
            preset: A name (`"bert_base"`), a directory (ours, Hugging Face's, keras-hub's,
                sentence-transformers' or google-research/bert's), or `"hf://org/name[@revision]"`.
            load_weights: False keeps the initial weights. A name then needs no network access, and its vocabulary,
                which comes with the weights, must be passed in `preprocessor`.
            dtype: Precision policy of the backbone, such as `"mixed_bfloat16"`.
            sequence_length: Maximum input length in tokens; longer inputs are truncated or split into windows.
            **arguments: Constructor arguments that override the preset's.

        Raises:
            ValueError: The preset is not found or not supported, or a weight is missing or has another shape.
        """
        ours = cls.__mro__[: cls.__mro__.index(Task)]
        makers = [vars(parent)["__init__"] for parent in ours if "__init__" in vars(parent)]
        known = {name for maker in makers for name in inspect.signature(maker).parameters}
        refuse_unknown(cls.__name__, arguments, known=(*known, "trainable"))
        checkpoint = cls.read_preset(preset, load_weights)
        head = cls.head_arguments(checkpoint, arguments)
        if "dropout" in inspect.signature(cls).parameters and checkpoint.head_dropout is not None:
            head.setdefault("dropout", checkpoint.head_dropout)
        with weights_are_loaded(load_weights):
            backbone = BertBackbone(**{**checkpoint.backbone, "pooler": cls.needs_pooler, "dtype": dtype})
        if "preprocessor" not in head and checkpoint.vocabulary is not None:
            head["preprocessor"] = cls.build_preprocessor(checkpoint, sequence_length)
        elif sequence_length is not None:
            raise ValueError(
                "`sequence_length` must be None unless the preset's vocabulary is used: set it in the preprocessor. "
                f"Received: sequence_length={sequence_length}"
            )
        if head.get("preprocessor") is None and load_weights:
            _logger.warning("%s: no vocabulary, so it takes ready arrays only; pass preprocessor= for text", preset)
        task = cls(backbone, **head)
        if load_weights:
            new_head = () if task.continues(checkpoint) else cls.head_layers
            task.load_report = load_arrays(task, checkpoint, head=(*cls.head_layers, "pooler"), new_head=new_head)
        return task

    def save_to_preset(self, path: str | os.PathLike[str]) -> None:
        """Write a preset directory that transformers can also open; on failure nothing is written."""
        self.check_preset()
        tokenizer = None if self.preprocessor is None else self.preprocessor.tokenizer
        checkpoint = Checkpoint(
            self.preset_class(),
            self.backbone.architecture,
            self.head_config(),
            arrays_of(self),
            vocabulary=None if tokenizer is None else tokenizer.vocabulary,
            tokenizer={} if tokenizer is None else tokenizer.options(),
            sequence_length=None if self.preprocessor is None else self.preprocessor.sequence_length,
            settings=self.settings(),
        )
        save_preset(path, checkpoint)

    def check_preset(self) -> None:
        """Raise a `ValueError` for what a preset cannot store."""
        self.preset_class()
        if self.preprocessor is None:
            return
        for part, kind in ((self.preprocessor, self.preprocessor_class), (self.preprocessor.tokenizer, BertTokenizer)):
            if type(part) is not kind:
                raise ValueError(
                    f'A preset comes back with a {kind.__name__}, not with one of your own: use save(".keras"). '
                    f"Received: {type(part).__name__}"
                )

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config:
            # Keras stores what "auto" means on this backend; another backend would take that for the user's choice.
            config["jit_compile"] = self._given_jit_compile
        if self.optimizer is None:
            return config
        # `built` goes into the optimizer's config, as `keras.models.clone_model` passes other keys to a plain model's
        # `compile`.
        optimizer = keras.saving.serialize_keras_object(self.optimizer)
        return {**config, "optimizer": {**optimizer, "built": self.optimizer.built}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # An optimizer with loss scaling was saved as such.
        if not self._compile_with(**keras.saving.deserialize_keras_object(config), auto_scale_loss=False):
            warnings.warn(
                f"The `compile` of {type(self).__name__} takes arguments of its own, so the loaded model was compiled "
                f"without it. Override `get_compile_config` and `compile_from_config`, or call `compile`.",
                stacklevel=2,
            )
        if self.optimizer is not None and config["optimizer"].get("built"):  # Creates variables for the saved state.
            self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            "backbone": serialize(self.backbone),
            "preprocessor": None if self.preprocessor is None else serialize(self.preprocessor),
            **self.head_config(),
            **quantized_layers(self, besides=self.backbone),
            **frozen_weights(self, besides=self.backbone),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        objects = {
            name: None if config[name] is None else keras.saving.deserialize_keras_object(config[name])
            for name in ("backbone", "preprocessor")
        }
        arguments = {name: value for name, value in config.items() if name != "frozen"}
        task = quantize_again(cls, {**arguments, **objects})
        return freeze_again(task, config.get("frozen"), besides=task.backbone)


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("keras_bert_zoo.")


def _check_kind(preprocessor: Any, kind: type) -> None:
    """Check that `preprocessor` packs what the task takes: another task's does not, a user's own may."""
    ours = next(filter(_is_ours, type(preprocessor).__mro__), None)
    if ours is not kind and (ours is not None or not hasattr(preprocessor, "pack")):
        raise ValueError(
            f"`preprocessor` must be a {kind.__name__}. Received: preprocessor of type {type(preprocessor).__name__}"
        )


def check_preprocessor(preprocessor: Any, backbone: BertBackbone) -> None:
    """Check that the backbone has an embedding for every id and position that the preprocessor produces."""
    tokens, rows = preprocessor.tokenizer.vocabulary_size, backbone.architecture["vocabulary_size"]
    if tokens > rows:
        raise ValueError(
            "`preprocessor` must have a vocabulary no larger than the backbone's embedding. "
            f"Received: {tokens} tokens, vocabulary_size={rows}"
        )
    length, positions = preprocessor.sequence_length, backbone.architecture["max_sequence_length"]
    if length > positions:
        raise ValueError(
            "`sequence_length` must be at most the backbone's max_sequence_length. "
            f"Received: sequence_length={length}, max_sequence_length={positions}"
        )

"""What all tasks share: a backbone, a preprocessor, and `fit`, `evaluate`, `predict` on raw text."""

import logging
import os
import random
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_bert_zoo.checkpoints import Checkpoint
from keras_bert_zoo.layers.checks import check_positive_int
from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.feeding import FollowEpochs, is_tf_dataset, replicas, task_lengths, tokenise_tf_dataset
from keras_bert_zoo.models.loading import LoadReport, load_arrays
from keras_bert_zoo.presets import load_preset, save_preset
from keras_bert_zoo.text import BertTokenizer
from keras_bert_zoo.text.batching import LengthSortedBatches
from keras_bert_zoo.text.packing import Examples, PaddedArrays
from keras_bert_zoo.text.texts import is_texts
from keras_bert_zoo.training import WarmupLinearDecay

_logger = logging.getLogger("keras_bert_zoo")


class Task(keras.Model):
    """A backbone, a head and a preprocessor.

    A subclass builds its head, calls `super().__init__` with the functional inputs and outputs, and states how
    targets are encoded, what `compile` does without arguments and what its head is called.

    `fit`, `evaluate` and `predict` take as `x`

    - raw text, where there is a preprocessor: a list of strings, or for pairs a tuple of two lists;
    - ready arrays: a dict of `token_ids`, `segment_ids` and `padding_mask`, int `[examples, length]`;
    - a batched `tf.data.Dataset` of either, with the targets; it streams as it is;
    - any other data set that Keras takes, of ready batches; it streams as it is.

    The first two are tokenised once and put into batches of similar length. Predictions come in the order given.
    """

    preprocessor_class: ClassVar[Any]
    head_layers: ClassVar[tuple[str, ...]]
    """Layers whose weights may be missing from a preset. The pooler counts, as some released models have none."""

    def __init__(
        self, backbone: BertBackbone, preprocessor: Any, inputs: Any, outputs: Any, name: str, **kwargs: Any
    ) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name, **kwargs)
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.load_report: LoadReport | None = None
        if preprocessor is not None:
            check_preprocessor(preprocessor, backbone)
        self.compile()

    # --- What a subclass states

    def encode_targets(self, y: Any, count: int, learn: bool = False) -> np.ndarray:
        """Check targets and turn them into an array with one row an example; `learn` is True in `fit` only."""
        raise NotImplementedError

    def head_config(self) -> dict[str, Any]:
        """What a preset has to say about the head."""
        raise NotImplementedError

    @classmethod
    def head_arguments(cls, checkpoint: Checkpoint, arguments: dict[str, Any]) -> dict[str, Any]:
        """The constructor's arguments for the head, from the caller's and the preset's."""
        raise NotImplementedError

    def continues(self, checkpoint: Checkpoint) -> bool:
        """Whether the preset's head means what this task's head means."""
        raise NotImplementedError

    # --- Training and inference

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.backbone.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[Any, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """As `keras.Model.fit`, on raw text too; see the class. Batches are drawn from Keras' random seed."""
        if not 0 <= validation_split < 1:
            raise ValueError(f"`validation_split` must be in [0, 1). Received: validation_split={validation_split!r}")
        if self._is_columns(x):
            examples = self._examples(x)
            targets, weight = self._targets(examples, y, sample_weight, learn=True)
            rows = np.arange(len(examples.lengths))
            if validation_split and validation_data is None:
                split = int(len(rows) * (1 - validation_split))
                if not 0 < split < len(rows):
                    raise ValueError(
                        "`validation_split` must leave examples on both sides. "
                        f"Received: validation_split={validation_split} of {len(rows)} examples"
                    )
                size = validation_batch_size or batch_size
                held_out = self._batches(examples, targets, weight, size, rows[split:][_first(validation_steps, size)])
                rows = rows[:split]
            if class_weight is not None:
                if weight is not None:
                    raise ValueError("`class_weight` and `sample_weight` exclude each other. Received: both")
                weight = self.weigh_classes(targets, class_weight)
            seed = random.randrange(2**31) if shuffle else None
            batches = self._batches(examples, targets, weight, batch_size, rows, seed, training=True)
            callbacks = _with_callback(callbacks, FollowEpochs(batches))
            data, class_weight = self._fed(batches), None
        else:
            data = self._streamed(x, y, sample_weight)
        if validation_data is not None:
            validation = self._validation(validation_data, validation_batch_size or batch_size, validation_steps)
        elif validation_split and self._is_columns(x):
            validation = self._fed(held_out)
        elif validation_split:
            raise ValueError("`validation_split` needs arrays or raw text. Received: a data set that streams")
        else:
            validation = None
        self._lay_schedule(data, steps_per_epoch, epochs, initial_epoch)
        return super().fit(
            data,
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation,
            shuffle=False,
            class_weight=class_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_freq=validation_freq,
        )

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.evaluate`, on raw text too; see the class."""
        if not kwargs:  # Keras passes one where `fit` evaluates batches that are made already.
            if self._is_columns(x):
                examples = self._examples(x)
                targets, weight = self._targets(examples, y, sample_weight)
                x = self._fed(self._batches(examples, targets, weight, batch_size, _first(steps, batch_size)))
            else:
                x = self._streamed(x, y, sample_weight)
        return super().evaluate(x, verbose=verbose, steps=steps, callbacks=callbacks, return_dict=return_dict, **kwargs)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """As `keras.Model.predict`, on raw text too; see the class. Returns logits in the order of `x`."""
        options = {"verbose": verbose, "steps": steps, "callbacks": callbacks}
        if not self._is_columns(x):
            return super().predict(self._streamed(x), **options)
        batches = self._batches(self._examples(x), None, None, batch_size, _first(steps, batch_size))
        return batches.restore_order(super().predict(self._fed(batches), **options))

    # --- From what the user gave to what Keras is fed

    def _is_columns(self, x: Any) -> bool:
        """Whether `x` is at hand as a whole, to be sorted by length; everything else streams."""
        if x is None:
            raise ValueError("`x` must be given. Received: x=None")
        return isinstance(x, dict) or is_texts(x)

    def _examples(self, x: Any) -> Examples:
        if isinstance(x, dict):
            arrays = {name: np.asarray(array) for name, array in x.items()}
            self.backbone.check_inputs(arrays)
            examples: Examples = PaddedArrays(arrays)
        elif self.preprocessor is None:
            raise ValueError(
                "`x` must be a dict of ready arrays, as the task has preprocessor=None. "
                f"Received: x of type {type(x).__name__}"
            )
        else:
            examples = self.preprocessor.pack(x)
            self.check_pairs(isinstance(x, tuple))
        if len(examples.lengths) == 0:
            raise ValueError("`x` must hold at least one example. Received: none")
        return examples

    def check_pairs(self, pairs: bool) -> None:
        """A pair needs a second segment type."""
        segments = self.backbone.architecture["num_segments"]
        if pairs and segments < 2:
            raise ValueError(f"Pairs need a backbone with two segment types. Received: num_segments={segments}")

    def _targets(
        self,
        examples: Examples,
        y: Any,
        sample_weight: Any = None,
        learn: bool = False,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        count = len(examples.lengths)
        if y is None:
            raise ValueError("`y` must be given. Received: y=None")
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight, dtype="float32")
            if sample_weight.shape != (count,):
                raise ValueError(
                    f"`sample_weight` must have the shape ({count},). "
                    f"Received: sample_weight.shape={sample_weight.shape}"
                )
        return self.encode_targets(y, count, learn), sample_weight

    def weigh_classes(self, targets: np.ndarray, class_weight: dict[Any, float]) -> np.ndarray:
        """A weight for each example from its class."""
        raise ValueError(f"`class_weight` needs classes. Received: {type(self).__name__}")

    def _batches(
        self,
        examples: Examples,
        targets: np.ndarray | None,
        weight: np.ndarray | None,
        batch_size: int | None,
        rows: np.ndarray | slice = slice(None),
        shuffle_seed: int | None = None,
        training: bool = False,
    ) -> LengthSortedBatches:
        if batch_size is not None:
            check_positive_int(batch_size=batch_size)
        return LengthSortedBatches(
            examples,
            targets,
            weight,
            batch_size=batch_size or 32,
            rows=np.arange(len(examples.lengths))[rows],
            static_lengths=task_lengths(self),
            shuffle_seed=shuffle_seed,
            training=training,
            multiple_of=replicas(self),
        )

    def _fed(self, batches: LengthSortedBatches) -> Any:
        return batches.to_tf() if keras.backend.backend() == "tensorflow" else batches

    def _streamed(self, x: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if isinstance(x, (list, str, int, float, np.ndarray)):
            raise ValueError(
                "`x` must be a list of strings, a tuple of two such lists, a dict of arrays or a data set. "
                f"Received: x of type {type(x).__name__}"
            )
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(
                    f"`{name}` must be part of the data set where x is one. Received: x of type {type(x).__name__}"
                )
        if is_tf_dataset(x):
            return tokenise_tf_dataset(x, self)
        return x

    def _validation(self, data: Any, batch_size: int | None, steps: int | None) -> Any:
        if not isinstance(data, (tuple, list, dict)):
            return self._streamed(data)
        if isinstance(data, dict) or len(data) not in (2, 3):
            raise ValueError(
                "`validation_data` must be (x, y) or (x, y, sample_weight). "
                f"Received: a {type(data).__name__} of {len(data)}"
            )
        examples = self._examples(data[0])
        rows = _first(steps, batch_size)
        return self._fed(self._batches(examples, *self._targets(examples, *data[1:]), batch_size, rows))

    def _lay_schedule(self, data: Any, steps_per_epoch: int | None, epochs: int, initial_epoch: int) -> None:
        """Lay a schedule that was left open over this run."""
        optimizer: Any = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        schedule = getattr(optimizer, "_learning_rate", None)
        if not isinstance(schedule, WarmupLinearDecay) or not schedule.follows_fit:
            return
        if steps_per_epoch is None:
            try:
                steps_per_epoch = len(data)
            except TypeError:
                raise ValueError(
                    "`steps_per_epoch` must be given where the data set does not know its length, or an optimizer "
                    "whose schedule has total_steps. Received: steps_per_epoch=None"
                ) from None
        # The run begins its count anew. Epochs before `initial_epoch` belong to it: an earlier call trained them, or a
        # callback is about to restore them.
        # `iterations` is no variable where gradients are accumulated; schedules count in steps of the model anyway.
        optimizer._iterations.assign(initial_epoch * steps_per_epoch)
        if schedule.total_steps != steps_per_epoch * epochs:
            schedule.total_steps = steps_per_epoch * epochs
            self.train_function = None  # The number is part of a compiled step.

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

        A head that the preset has is loaded; one it has not is freshly initialised, and the log says so.
        `task.load_report` lists what became of each weight.

        Args:
            preset: A name (`"bert_base"`), a directory (ours or Hugging Face's), or `"hf://org/name[@revision]"`.
            load_weights: False leaves the weights as initialised; for a name that never touches a network, and leaves
                the vocabulary, which comes with the weights, to `preprocessor`.
            dtype: Precision policy of the backbone, such as `"mixed_bfloat16"`.
            sequence_length: Longest input in tokens; longer texts are cut.
            **arguments: The constructor's, in place of the preset's.

        Raises:
            ValueError: Nothing was found, a field cannot be honoured, or a weight is missing or has another shape.
        """
        checkpoint = load_preset(preset, load_weights)
        head = cls.head_arguments(checkpoint, arguments)
        backbone = BertBackbone(**{**checkpoint.backbone, "pooler": True, "dtype": dtype})
        if "preprocessor" not in head and checkpoint.vocabulary is not None:
            head["preprocessor"] = cls.preprocessor_class(
                BertTokenizer(checkpoint.vocabulary, **checkpoint.tokenizer),
                sequence_length or checkpoint.sequence_length or checkpoint.backbone["max_sequence_length"],
            )
        elif sequence_length is not None:
            raise ValueError(
                "`sequence_length` needs a preset with a vocabulary, else it is the preprocessor's. "
                f"Received: sequence_length={sequence_length}"
            )
        if head.get("preprocessor") is None and load_weights:
            _logger.warning("%s: no vocab.txt, so it takes ready arrays only; pass preprocessor= for text", preset)
        task = cls(backbone, **head)
        if load_weights:
            new_head = () if task.continues(checkpoint) else cls.head_layers
            task.load_report = load_arrays(task, checkpoint, head=(*cls.head_layers, "pooler"), new_head=new_head)
        return task

    def save_to_preset(self, path: str | os.PathLike[str]) -> None:
        """Write a preset directory that transformers opens, too; all of it or nothing."""
        tokenizer = None if self.preprocessor is None else self.preprocessor.tokenizer
        checkpoint = Checkpoint(
            type(self).__name__,
            self.backbone.architecture,
            self.head_config(),
            {weight.path: keras.ops.convert_to_numpy(weight) for weight in self.weights},
            vocabulary=None if tokenizer is None else tokenizer.vocabulary,
            tokenizer={} if tokenizer is None else tokenizer.options(),
            sequence_length=None if self.preprocessor is None else self.preprocessor.sequence_length,
        )
        save_preset(path, checkpoint)

    def get_compile_config(self) -> dict[str, Any]:
        return {**super().get_compile_config(), "optimizer_built": getattr(self.optimizer, "built", False)}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        config = dict(config)
        built = config.pop("optimizer_built", False)
        self.compile(**keras.saving.deserialize_keras_object(config))
        if built:  # Makes room for the state that the file holds.
            self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            "backbone": serialize(self.backbone),
            "preprocessor": None if self.preprocessor is None else serialize(self.preprocessor),
            **self.head_config(),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        objects = {
            name: None if config[name] is None else keras.saving.deserialize_keras_object(config[name])
            for name in ("backbone", "preprocessor")
        }
        return cls(**{**config, **objects})


def check_preprocessor(preprocessor: Any, backbone: BertBackbone) -> None:
    """The backbone must have a row for every id and a position for every token that the preprocessor makes."""
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


def _first(steps: int | None, batch_size: int | None) -> slice:
    """The rows that `steps` batches take, before they are sorted."""
    if steps is not None:
        check_positive_int(steps=steps)
    return slice(None if steps is None else steps * (batch_size or 32))


def _with_callback(callbacks: Any, callback: keras.callbacks.Callback) -> Any:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.append(callback)
        return callbacks
    given = [] if callbacks is None else callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [*given, callback]

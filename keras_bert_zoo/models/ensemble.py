"""Several models of one task behind one `predict` (Devlin et al. 2019, section 4.2)."""

import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

import keras

from keras_bert_zoo.models.feature_token_classifier import BertFeatureTokenClassifier
from keras_bert_zoo.models.masked_lm import BertMaskedLM
from keras_bert_zoo.models.multiple_choice import BertMultipleChoice
from keras_bert_zoo.models.next_sentence import BertNextSentencePredictor
from keras_bert_zoo.models.question_answerer import BertQuestionAnswerer
from keras_bert_zoo.models.task import Task
from keras_bert_zoo.models.text_classifier import BertTextClassifier
from keras_bert_zoo.models.text_regressor import BertTextRegressor
from keras_bert_zoo.models.token_classifier import BertTokenClassifier

_Task = TypeVar("_Task", bound=Task)


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class MeanOfMembers(keras.layers.Layer):
    """Average the outputs of models for the same inputs."""

    def __init__(self, members: Sequence[Task], **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.members = list(members)

    @property
    def metrics(self) -> list[Any]:
        return []  # The members' own metrics are not updated when the ensemble is evaluated.

    def build(self, inputs_shape: Any) -> None:
        self.built = True  # The members are built already.

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        mean = self.members[0](inputs, training=training)
        for count, member in enumerate(self.members[1:], start=2):
            mean = keras.tree.map_structure(partial(_mean_with, count), mean, member(inputs, training=training))
        return mean

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        return self.members[0].compute_output_spec(inputs)

    def get_config(self) -> dict[str, Any]:
        members = [keras.saving.serialize_keras_object(member) for member in self.members]
        return {"members": members, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        members = [keras.saving.deserialize_keras_object(member) for member in config["members"]]
        return cls(**{**config, "members": members})


def _mean_with(count: int, mean: Any, value: Any) -> Any:
    """Update a mean with value number `count`. Unlike a sum, this keeps equal values exact, such as -1e9 at padding."""
    return mean + (value - mean) / count


# Config entries that each member keeps itself.
_OF_MEMBERS = ("backbone", "preprocessor", "quantized", "frozen", "class_names")


class _Ensemble(Task):
    """Mixin that turns a task's class into an ensemble; see `ensemble`."""

    members: Sequence[Task]

    def __init__(
        self, members: Sequence[Task], name: str = "bert_ensemble", trainable: bool = True, **arguments: Any
    ) -> None:
        first = members[0]
        # The methods of the task's class read these attributes. An ensemble may have its own values, such as a null
        # threshold, but no weights.
        for argument, value in {**first.get_config(), **arguments}.items():
            if argument not in (*_OF_MEMBERS, "name", "trainable"):
                setattr(self, argument, value)
        mean = MeanOfMembers(members, name="mean_of_members")
        outputs = mean(first.input)
        Task.__init__(self, first.backbone, first.preprocessor, first.input, outputs, name, trainable=trainable)
        self.members = mean.members

    @property
    def class_names(self) -> list[str] | None:
        """The members' names, which they may have learned since."""
        first, *others = (getattr(member, "class_names", None) for member in self.members)
        for i, names in enumerate(others, start=1):
            _check_same("class_names", first, names, i)
        return first

    @class_names.setter
    def class_names(self, names: list[str] | None) -> None:
        for member in self.members:
            member.class_names = names

    @contextmanager
    def states_back(self) -> Iterator[None]:
        _ = self.class_names  # Logits of members that mean different classes have no mean.
        with super().states_back():
            yield

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "An ensemble is not trained: fit its members, one after another. "
            f"Received: one with {len(self.members)} members"
        )

    train_on_batch = fit

    def save_to_preset(self, path: Any) -> None:
        raise ValueError(
            f"A preset can store only one model: save each of `members`, or use save(). Received: path={str(path)!r}"
        )

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "members": [keras.saving.serialize_keras_object(m) for m in self.members]}
        return {name: value for name, value in config.items() if name not in _OF_MEMBERS}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        members = [keras.saving.deserialize_keras_object(member) for member in config["members"]]
        return cls(**{**config, "members": members})


def _ensemble_of(task: type[Task]) -> Any:
    """Create the class of a task's ensembles, registered so that Keras can load one."""
    documented = {"__doc__": f"The mean of several `{task.__name__}`; see `ensemble`.", "__module__": __name__}
    ensembles = types.new_class(
        f"{task.__name__}Ensemble", (_Ensemble, task), exec_body=lambda ns: ns.update(documented)
    )
    return keras.saving.register_keras_serializable(package="keras_bert_zoo")(ensembles)


_ENSEMBLES: dict[type[Task], Any] = {
    task: _ensemble_of(task)
    for task in (
        BertTextClassifier,
        BertTextRegressor,
        BertTokenClassifier,
        BertFeatureTokenClassifier,
        BertQuestionAnswerer,
        BertMultipleChoice,
        BertNextSentencePredictor,
        BertMaskedLM,
    )
}
globals().update({ensembles.__name__: ensembles for ensembles in _ENSEMBLES.values()})  # Where pickle looks for them.


def ensemble(members: Sequence[_Task]) -> _Task:
    """Combine several tasks into one whose outputs are their mean (Devlin et al. 2019, section 4.2).

    The paper's ensemble of seven SQuAD models, from different pre-training checkpoints and fine-tuning seeds, has a dev
    F1 of 91.8; a single model has 90.9 (table 2). Logits are averaged, not probabilities.

    The result is an instance of the members' class: `predict`, `evaluate`, `classify`, `tag`, `answer`, `choose` and
    the like work as usual. It is not trained, and a preset cannot hold it. Each text is tokenised once. Members keep
    their weights, precision and size; no weight is copied. `save` writes all of them to one `.keras` file.

    Args:
        members: Built tasks of one class of this package, but for embedders and pretrainers. They must agree in the
            meaning of inputs and outputs: classes and their names, vocabulary, tokenizer, lengths. Other settings, such
            as `null_threshold`, are the first member's until they are set; `tune_null_threshold` finds the ensemble's
            own.

    Raises:
        ValueError: A member has another class, or does not agree with the first.

    Example:

    ```python
    answerer = kbz.ensemble([kbz.BertQuestionAnswerer.from_preset(f"run{seed}") for seed in range(7)])
    answerer.answer("Who was Rollo?", "Rollo was a Viking …")
    answerer.score((dev.question, dev.context), dev.answers)
    answerer.save("answerer.keras")
    ```
    """
    if not isinstance(members, (list, tuple)) or not members:
        raise ValueError(f"`members` must be a list of tasks. Received: members={members!r}")
    for i, member in enumerate(members):
        if type(member) not in _ENSEMBLES:
            known = ", ".join(task.__name__ for task in _ENSEMBLES)
            raise ValueError(
                f"`members` must be built tasks, each one of {known}. "
                f"Received: members[{i}] of type {type(member).__name__}"
            )
        if any(member is other for other in members[:i]):
            raise ValueError(f"`members` must be different models. Received: members[{i}] twice")
        _check_agreement(members[0], member, i)
    return _ENSEMBLES[type(members[0])](members)


def _check_agreement(first: Task, member: Task, i: int) -> None:
    ours, theirs = _meaning(first), _meaning(member)
    for name in {**ours, **theirs}:
        _check_same(name, ours.get(name), theirs.get(name), i)


def _check_same(name: str, ours: Any, theirs: Any, i: int) -> None:
    if ours != theirs:
        here, there = _difference(name, ours, theirs)
        raise ValueError(f"`members` must agree in {name}. Received: {here} in members[0], {there} in members[{i}]")


def _meaning(member: Task) -> dict[str, Any]:
    """Return, by name, the settings that define the meaning of a member's inputs and outputs."""
    config, architecture, preprocessor = member.get_config(), member.backbone.architecture, member.preprocessor
    meaning: dict[str, Any] = {
        "class": type(member).__name__,
        **{name: config[name] for name in ("num_classes", "class_names", "multi_label") if name in config},
        **{name: architecture[name] for name in ("vocabulary_size", "max_sequence_length", "num_segments", "causal")},
        "preprocessor": None if preprocessor is None else type(preprocessor).__name__,
    }
    if preprocessor is not None:
        tokenizer = preprocessor.tokenizer
        meaning |= {**preprocessor.get_config(), "tokenizer": type(tokenizer).__name__, **tokenizer.options()}
        meaning["vocabulary"] = tokenizer.vocabulary
    return meaning


def _difference(name: str, ours: Any, theirs: Any) -> tuple[str, str]:
    """Describe two unequal values briefly: for lists, the first place where they differ, or their lengths."""
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return f"{name}={ours!r}", f"{name}={theirs!r}"
    for place, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"{name}[{place}]={our!r}", f"{name}[{place}]={their!r}"
    return f"{len(ours)}", f"{len(theirs)}"

"""keras_bert_zoo in `finetune_scores.py`: raw examples with plain `fit`."""

from typing import Any

import keras
import numpy as np
from scores_tasks import EPSILON, LEARNING_RATE, TAGS, TASKS, WARMUP, Examples, contend, timed

import keras_bert_zoo as kbz
from keras_bert_zoo.text import batching


def build(name: str, preset: str, random: bool = False, learning_rate: float = LEARNING_RATE, **options: Any) -> Any:
    """Build the task's model with the preset's weights, or with fresh ones of the same architecture."""
    model_class: Any
    model_class, head = {
        "conll": (kbz.BertTokenClassifier, {"class_names": TAGS}),
        "dream": (kbz.BertMultipleChoice, {}),
        "stsb": (kbz.BertTextRegressor, {}),
        "squad": (kbz.BertQuestionAnswerer, {}),
        "squad2": (kbz.BertQuestionAnswerer, {"null_threshold": 0.0}),
    }.get(name, (kbz.BertTextClassifier, {"num_classes": 2}))
    length = TASKS[name].sequence_length
    model = model_class.from_preset(preset, load_weights=not random, sequence_length=length, **head, **options)
    schedule = kbz.WarmupPolynomialDecay(learning_rate, warmup=WARMUP)
    model.compile(kbz.AdamW(schedule, epsilon=EPSILON, bias_correction=True))
    return model


def fill_heads(model: Any, seed: int) -> None:
    """Fill fresh kernels from a normal of 0.02 instead of the original's truncated one, whose deviation is 0.0176."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.path.endswith("kernel") and any(weight.path.endswith(name) for name in model.load_report.fresh):
            weight.assign(rng.normal(scale=0.02, size=weight.shape))


def finetune(name: str, train: Examples, dev: Examples, job: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    keras.utils.set_random_seed(job["seed"])
    if job["random_batches"]:
        batching._BATCHES_SORTED_TOGETHER = 1
    dtype = "mixed_bfloat16" if job["bfloat16"] else "float32"
    model = build(name, job["preset"], job["random"], job["learning_rate"], dtype=dtype)
    if job["normal_heads"]:
        fill_heads(model, job["seed"])
    task = TASKS[name]
    measured: dict[str, Any] = timed(
        lambda: model.fit(*train, batch_size=task.batch_size, epochs=task.epochs, verbose=2)
    )
    if job["random"]:
        measured["initializer_range"] = model.backbone.architecture["initializer_range"]
    if job["bfloat16"]:
        trained = model.get_weights()
        model = build(name, job["preset"], job["random"])
        model.set_weights(trained)
    if name in ("squad", "squad2"):
        found = model.find_answers(dev.x)
        return ([one.best().text for one in found], [one.null_odds for one in found]), measured
    logits = model.predict(dev.x, verbose=0)
    if name == "conll":
        return [[model.class_names[i] for i in sentence.argmax(-1)] for sentence in logits], measured
    return logits, measured


if __name__ == "__main__":
    contend(finetune, ("keras", keras.backend.backend()))

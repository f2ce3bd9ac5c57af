"""Search for a task's best hyperparameters with Keras Tuner, which is imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_bert_zoo.tuning.spaces import PAPER as PAPER
from keras_bert_zoo.tuning.spaces import SMALL_MODELS as SMALL_MODELS
from keras_bert_zoo.tuning.sweep import tune as tune

if TYPE_CHECKING:
    from keras_bert_zoo.tuning.grid import GridSearch as GridSearch
    from keras_bert_zoo.tuning.hypermodel import TaskHyperModel as TaskHyperModel
    from keras_bert_zoo.tuning.results import best_preset as best_preset
    from keras_bert_zoo.tuning.results import draw_sweep as draw_sweep
    from keras_bert_zoo.tuning.results import save_best as save_best
    from keras_bert_zoo.tuning.results import table as table
    from keras_bert_zoo.tuning.results import write_table as write_table

_WHEN_USED = {
    "GridSearch": "grid",
    "TaskHyperModel": "hypermodel",
    **dict.fromkeys(("best_preset", "draw_sweep", "save_best", "table", "write_table"), "results"),
}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHEN_USED[name]}"), name)

"""A grid search that goes on where it was interrupted."""

from functools import cmp_to_key

from keras_bert_zoo.tuning.extra import keras_tuner
from keras_bert_zoo.tuning.resuming import Resuming


class GridSearch(Resuming, keras_tuner.GridSearch):
    """As `keras_tuner.GridSearch`, which forgets in an interruption where on the grid it was.

    Keras Tuner 1.4 keeps the trials on disk, but not their order on the grid: started again, its `GridSearch` ends at
    once, or fails where a trial was interrupted. Here the order is found again from the trials' values. Trials that
    failed for want of memory, of disk or of a network are tried again, too.
    """

    def reload(self) -> None:
        super().reload()
        oracle = self.oracle
        if not hasattr(oracle, "trials"):  # A worker's, which asks the chief.
            return

        def compare(one: str, other: str) -> int:
            values = [oracle.trials[trial_id].hyperparameters.values for trial_id in (one, other)]
            return oracle._compare(*values)

        oracle._ordered_ids = type(oracle._ordered_ids)()
        for trial_id in sorted(oracle.trials, key=cmp_to_key(compare)):
            oracle._ordered_ids.insert(trial_id)
        oracle._populate_next = list(oracle.start_order)

"""A grid search that can be resumed."""

from functools import cmp_to_key

from keras_bert_zoo.tuning.extra import keras_tuner
from keras_bert_zoo.tuning.resuming import Resuming


class GridSearch(Resuming, keras_tuner.GridSearch):
    """`keras_tuner.GridSearch` that keeps its place on the grid when it is interrupted.

    Keras Tuner 1.4 saves the trials, but not their order on the grid. Started again, its `GridSearch` ends at once, or
    fails if a trial was interrupted. Here the order is recovered from the trials' values. Trials that failed for lack
    of memory, disk space or network are also retried.
    """

    def reload(self) -> None:
        super().reload()
        oracle = self.oracle
        if not hasattr(oracle, "trials"):  # A worker has none; it asks the chief.
            return

        def compare(one: str, other: str) -> int:
            values = [oracle.trials[trial_id].hyperparameters.values for trial_id in (one, other)]
            return oracle._compare(*values)

        oracle._ordered_ids = type(oracle._ordered_ids)()
        for trial_id in sorted(oracle.trials, key=cmp_to_key(compare)):
            oracle._ordered_ids.insert(trial_id)
        oracle._populate_next = list(oracle.start_order)

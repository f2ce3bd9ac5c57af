"""What it takes to start any of Keras Tuner's searches again: whole files, and another try of what failed."""

from pathlib import Path
from typing import Any

from keras_bert_zoo.files import read_json, write_json
from keras_bert_zoo.tuning.extra import keras_tuner
from keras_bert_zoo.tuning.failures import failures, forget_failure, keep_failure

# Of a point that was not tried yet. Keras Tuner gives up after 20, often before the last of a few points.
_DRAWS = 1000


class Resuming(keras_tuner.Tuner):
    """To be inherited from before one of Keras Tuner's tuners.

    Keras Tuner 1.4 writes its files in place, so that a kill can leave half of one, and never tries again what has
    failed, be it for a disk that was full.
    """

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        oracle = self.oracle
        if not self._is_worker():  # Only the chief's writes; it has no class of ours, as the tuner makes it.
            oracle._max_collisions = _DRAWS
            oracle.save = lambda: write_json(Path(oracle._get_oracle_fname()), oracle.get_state())
            oracle._save_trial = lambda trial: write_json(
                Path(oracle._get_trial_dir(trial.trial_id)) / "trial.json", trial.get_state()
            )
        super().search(*fit_args, **fit_kwargs)

    def save(self) -> None:
        if not self._is_worker():
            self.oracle.save()
        write_json(Path(self._get_tuner_fname()), self.get_state())

    def run_trial(self, trial: Any, *fit_args: Any, **fit_kwargs: Any) -> Any:
        folder = Path(self.get_trial_dir(trial.trial_id))
        forget_failure(folder)
        try:
            return super().run_trial(trial, *fit_args, **fit_kwargs)
        except keras_tuner.errors.FatalError:
            raise  # It ends the search.
        except Exception as error:
            keep_failure(folder, error)
            raise

    def reload(self) -> None:
        paths = [Path(self._get_tuner_fname())]
        if not self._is_worker():
            folder = Path(self.project_dir)
            paths += [folder / "oracle.json", *sorted(folder.glob("trial_*/trial.json"))]
        for path in paths:
            read_json(path)  # Keras Tuner would not say which one is broken.
        super().reload()
        if not self._is_worker():
            self._queue_unlisted()
            self._queue_failures()

    def _queue_unlisted(self) -> None:
        """Have those run whose files were written just before an interruption, and not yet their names."""
        oracle = self.oracle
        for trial_id in sorted(set(oracle.trials) - set(oracle.start_order)):
            oracle.start_order.append(trial_id)
            oracle._retry_queue.append(trial_id)

    def _queue_failures(self) -> None:
        """Have what failed tried again, in its order, after what was interrupted."""
        oracle = self.oracle
        again = [trial_id for trial_id, failure in failures(self).items() if failure.passing]
        for trial_id in again:
            trial = oracle.trials[trial_id]
            trial.message, trial.metrics = None, type(trial.metrics)()
            oracle._run_times.pop(trial_id, None)
        oracle.end_order = [trial_id for trial_id in oracle.end_order if trial_id not in again]
        # The last comes first. What failed may be in the queue from an earlier start.
        oracle._retry_queue = again[::-1] + [trial_id for trial_id in oracle._retry_queue if trial_id not in again]

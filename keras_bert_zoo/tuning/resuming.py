"""Make any of Keras Tuner's searches resumable: write files completely, and retry what failed."""

import os
from pathlib import Path
from typing import Any

from keras_bert_zoo.json_files import read_json, write_json
from keras_bert_zoo.tuning.extra import keras_tuner
from keras_bert_zoo.tuning.failures import failures, forget_failure, keep_failure

# Attempts to draw a point that was not tried yet. Keras Tuner stops after 20, often before the last of a few points.
_DRAWS = 1000


class Resuming(keras_tuner.Tuner):
    """A mixin to put before one of Keras Tuner's tuners.

    Keras Tuner 1.4 writes its files in place, so that a kill can leave half a file, and never retries a failed trial,
    even if the disk was full.
    """

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        oracle = self.oracle
        if not self._is_worker():  # Only the chief's oracle writes; it cannot be our class, as the tuner makes it.
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
            read_json(path)  # Keras Tuner would not say which file is broken.
        super().reload()
        if not self._is_worker():
            if "KERASTUNER_ORACLE_IP" in os.environ:
                self._leave_to_workers(read_json(folder / "oracle.json"))
            self._queue_unlisted()
            self._queue_failures()

    def _leave_to_workers(self, before: dict[str, Any]) -> None:
        """Leave the trials under way to the workers of a shared sweep, which outlive its chief.

        Keras Tuner would give them to others. A dead worker gets its trial back when it is restarted under its name.

        Args:
            before: The oracle's state, in which a trial stays under way until after its end is written.
        """
        oracle = self.oracle
        over = {*before["end_order"], *before["retry_queue"]}
        oracle._retry_queue = before["retry_queue"]
        for worker, trial_id in before["ongoing_trials"].items():
            if trial_id not in over:
                oracle.ongoing_trials[worker] = trial = oracle.trials[trial_id]
                trial.status = "RUNNING"  # It may have failed before.
                oracle.tuner_ids.add(worker)
                oracle._display.on_trial_begin(trial)  # Its file may not say so yet, and it will end there.

    def _queue_unlisted(self) -> None:
        """Queue trials whose files were written before an interruption, but not yet their names."""
        oracle = self.oracle
        for trial_id in sorted(set(oracle.trials) - set(oracle.start_order)):
            oracle.start_order.append(trial_id)
            oracle._retry_queue.append(trial_id)

    def _queue_failures(self) -> None:
        """Queue failed trials for a retry, in their order, after interrupted ones."""
        oracle = self.oracle
        again = [trial_id for trial_id, failure in failures(self).items() if failure.passing]
        for trial_id in again:
            trial = oracle.trials[trial_id]
            trial.message, trial.metrics = None, type(trial.metrics)()
            oracle._run_times.pop(trial_id, None)
        oracle.end_order = [trial_id for trial_id in oracle.end_order if trial_id not in again]
        # The queue is taken from the end. Failed trials may still be in it from an earlier start.
        oracle._retry_queue = again[::-1] + [trial_id for trial_id in oracle._retry_queue if trial_id not in again]

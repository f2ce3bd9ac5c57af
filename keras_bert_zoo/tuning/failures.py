"""Record why trials failed, in the trial's directory, because Keras Tuner passes no messages between processes."""

import math
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_zoo.checks import listed
from keras_bert_zoo.json_files import read_json, write_json
from keras_bert_zoo.tuning.extra import keras_tuner

_FILE = "failure.json"


@dataclass(frozen=True)
class Failure:
    """The failure of one trial.

    Args:
        reason: Reason in one line.
        passing: Whether a retry may succeed, as after running out of memory, but not after a loss that is not finite.
    """

    reason: str
    passing: bool


def keep_failure(folder: Path, error: Exception) -> None:
    """Record what went wrong in a trial; called where the exception is caught."""
    reason = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
    passing = not isinstance(error, keras_tuner.errors.FailedTrialError)
    write_json(folder / _FILE, {"reason": reason, "passing": passing, "traceback": traceback.format_exc()})


def forget_failure(folder: Path) -> None:
    """Delete the record of a failure before the trial is retried."""
    (folder / _FILE).unlink(missing_ok=True)


def failures(tuner: Any) -> dict[str, Failure]:
    """Return the failures of the trials that failed, by trial id."""
    trials = sorted(tuner.oracle.get_best_trials(1_000_000), key=lambda trial: str(trial.trial_id))
    return {trial.trial_id: _failure(tuner, trial) for trial in trials if trial.status == "FAILED"}


def reasons(failed: dict[str, Failure]) -> str:
    """Describe which trials failed and why, for a message."""
    return listed([f"trial {trial_id} ({failure.reason})" for trial_id, failure in failed.items()])


def _failure(tuner: Any, trial: Any) -> Failure:
    if trial.score is not None and math.isnan(trial.score):
        return Failure("the objective is NaN", passing=False)
    path = Path(tuner.get_trial_dir(trial.trial_id)) / _FILE
    if path.is_file():
        kept = read_json(path)
        return Failure(kept["reason"], kept["passing"])
    lines = (trial.message or "unknown").strip().splitlines()  # Keras Tuner itself failed.
    return Failure(lines[-1], passing=True)

"""Recovery of the variables that Keras, on JAX, holds outside of a model during a pass, if the pass fails."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

_turns: Any = weakref.WeakKeyDictionary()
_asking = threading.Lock()


class KeepsStates:
    """Mixin for a `keras.Model`: on JAX, Keras moves the variables out of the model for a pass (Keras 3.15).

    It moves them back after the pass, and after an error in `fit` once a step is complete. An error in the first step,
    such as Ctrl+C while it compiles, or between two steps of one execution, would leave a model without weights. So
    would another thread's pass. Tasks that evaluate and predict with one backbone on several threads take turns, an
    ensemble with each of its members, so a pass must not wait for data that another thread predicts with that backbone.
    While a task is in `fit`, no other thread can use its backbone. Nor can another thread call the backbone's own
    `predict` while a task predicts.
    """

    _jax_state: Any
    _jax_state_synced: bool

    def _make_function(self, step_function: Any, *args: Any, **kwargs: Any) -> Any:
        if keras.backend.backend() != "jax":
            return super()._make_function(step_function, *args, **kwargs)  # type: ignore[misc]
        newest: deque[Any] = deque(maxlen=1)  # The last step's outputs and state.

        def noted(state: Any, data: Any) -> Any:
            # The step is run and kept by C: Python raises a Ctrl+C that comes meanwhile after `extend`, not before it.
            newest.extend(map(step_function, (state,), (data,)))
            return newest[0]

        run = super()._make_function(noted, *args, **kwargs)  # type: ignore[misc]

        def run_or_give_back(state: Any, iterator: Any) -> Any:
            try:
                newest.append((None, state))
                return run(state, iterator)
            except BaseException as error:
                if not self._give_back(newest[0][1]):
                    error.add_note("The step had taken the model's weights with it: load them again.")
                raise
            finally:
                del newest[0]  # Not `clear()`: after a call, a Ctrl+C would take what is returned with it.

        return run_or_give_back

    def _give_back(self, state: Sequence[Any]) -> bool:
        """Assign a step's variables: trainable, non-trainable, then the optimizer's and the metrics' if it has them.

        Returns False if they are gone: a step whose program has begun owns the arrays.
        """
        self._jax_state = None
        names = ["trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"]
        if len(state) == 3:  # The state of an evaluation.
            names.remove("optimizer_variables")
        if any(value.is_deleted() for values in state for value in values):
            return False
        self._jax_state, self._jax_state_synced = dict(zip(names, state, strict=False)), False
        self.jax_state_sync()  # type: ignore[attr-defined]
        self._jax_state = None
        return True

    @contextmanager
    def states_back(self) -> Iterator[None]:
        """Context of `evaluate` and `predict`, in which an error between two steps loses no variables."""
        if keras.backend.backend() != "jax":
            yield
            return
        with ExitStack() as turns:
            for turn in _turns_of(getattr(self, "members", [self])):
                turns.enter_context(turn)
            self.jax_state_sync()  # type: ignore[attr-defined]  # In a callback, `fit` holds the weights.
            try:
                yield
            except BaseException:
                self.jax_state_sync()  # type: ignore[attr-defined]
                self._jax_state = None
                raise


def _turns_of(models: Sequence[Any]) -> list[Any]:
    """Return a lock for each backbone, in an order that is always the same: no two passes wait for each other.

    They are reentrant, so that a callback can take them again. One that takes more may wait for ever.
    """
    owners = {id(owner): owner for owner in (getattr(model, "backbone", model) for model in models)}
    with _asking:
        return [_turns.setdefault(owner, threading.RLock()) for _, owner in sorted(owners.items())]

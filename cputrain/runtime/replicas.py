"""Shard the batches of every root module call among replicas.

This begins after the first whole training step, which shows whether the script uses double
backward: such a script is left as it is.
"""

from __future__ import annotations

import weakref

from cputrain.counting import counted
from cputrain.runtime.double_backward import DoubleBackward
from cputrain.runtime.patching import never_compile
from cputrain.runtime.root_forward import root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MODELS = "{models}"
"""Placeholder in a sentence of the report for the number of models it applies to."""


class _Outcome:
    """What the report says about one model's batches; it outlives the model."""

    def __init__(self, model: str, num_replicas: int) -> None:
        self.model = model
        """The name of the model's class."""
        self.num_replicas = num_replicas
        """Replicas requested or chosen: 0 before the choice, 1 if undivided batches are fastest."""
        self.num_divided_calls = 0
        self.refusals: dict[str, None] = {}
        """Reasons for which calls were left undivided, in order and each once."""

    def describe(self) -> str:
        """Return the model's sentence in the report; "" if no call could be divided yet."""
        reasons = "; ".join(self.refusals)
        if self.num_divided_calls and reasons:
            return (
                f"batches of {self.model} divided among {counted(self.num_replicas, 'replica')} in "
                f"{counted(self.num_divided_calls, 'call')}, undivided in others: {reasons}"
            )
        if reasons:
            return f"batches of {self.model} undivided: {reasons}"
        if self.num_replicas == 1:
            return f"batches of {MODELS} undivided: that is fastest"
        if self.num_divided_calls:
            return f"batches of {MODELS} divided among {counted(self.num_replicas, 'replica')}"
        return ""


class Replicas:
    """The dispatchers of the models that were called.

    Args:
        torch: The module.
        count: Number of replicas; None measures it.
        is_measured: Whether None measures it, rather than leave batches undivided until `use`.
        is_reproducible: Whether the bits are to depend on `count` alone: each replica has one
            thread, and the first call is divided, too.
    """

    def __init__(
        self,
        torch: ModuleType,
        count: int | None,
        *,
        is_measured: bool = True,
        is_reproducible: bool = False,
    ) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._num_replicas = count
        self._is_reproducible = is_reproducible
        self._is_on = is_measured or count is not None
        self._num_steps = 0
        self._num_steps_at_first_call: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self._double_backward = DoubleBackward(torch)
        self._hook = register_optimizer_step_post_hook(self._after_step)
        never_compile(Replicas._after_step)
        self._dispatchers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._outcomes: list[_Outcome] = []
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._intercept)

    def _intercept(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not self._is_on or not (self._is_reproducible or self._is_ordinary_from_here_on(model)):
            return call(model, *args, **kwargs)
        entry = self._dispatchers.get(model)
        if entry is None:
            entry = self._dispatchers[model] = self._make_dispatcher(model)
        dispatcher, outcome = entry
        if dispatcher is None:
            return call(model, *args, **kwargs)
        try:
            return dispatcher(call, args, kwargs)
        finally:
            outcome.num_divided_calls = dispatcher.divided

    def _is_ordinary_from_here_on(self, model: Any) -> bool:
        """Return whether a whole step has shown that the model has no double backward."""
        first = self._num_steps_at_first_call.setdefault(model, self._num_steps)
        return self._num_steps > first and not self._double_backward.is_used

    def _after_step(self, *_: object) -> None:
        self._num_steps += 1

    @property
    def count(self) -> int | None:
        """Number of replicas in use; None if batches are not divided, or it is being measured."""
        return self._num_replicas if self._is_on else None

    def use(self, count: int | None) -> None:
        """Divide the batches of the next calls among `count` replicas; None divides none."""
        self._is_on = count is not None
        if count is not None and count != self._num_replicas:
            self.discard()
            self._num_replicas = count

    def discard(self) -> None:
        """Release all replicas and their threads."""
        self._dispatchers.clear()
        self._outcomes.clear()

    def _make_dispatcher(self, model: Any) -> tuple[Any, _Outcome]:
        from cputrain.split import Split, splitter_of

        outcome = _Outcome(type(model).__name__, self._num_replicas or 0)
        if isinstance(model, Split) or next(model.parameters(), None) is None:
            return (
                None,
                outcome,
            )  # a Split divides its batches itself; a model without parameters is not trained
        self._outcomes.append(outcome)

        def chose(count: int, _gain: float) -> None:
            outcome.num_replicas = count

        def refused(reason: str) -> None:
            outcome.refusals[reason] = None

        dispatcher = splitter_of(
            model,
            self._num_replicas,
            is_reproducible=self._is_reproducible,
            chose=chose,
            tell=refused,
            falls_back=True,
        )
        return dispatcher, outcome

    def describe(self) -> str:
        if not self._is_on:
            return ""
        if self._double_backward.is_used and not self._is_reproducible:
            return "batches undivided: the script differentiates gradients again"
        models: dict[str, int] = {}
        for outcome in self._outcomes:
            text = outcome.describe()
            if text:
                models[text] = models.get(text, 0) + 1
        return ", ".join(
            text.replace(MODELS, counted(count, "model")) for text, count in models.items()
        )

    def undo(self) -> None:
        self._root_forward.remove(self._intercept)
        self._double_backward.undo()
        self._hook.remove()

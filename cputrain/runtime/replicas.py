"""Divides the batches of every model that the script calls among replicas.

Once the script has been through a whole step: if it differentiates gradients again, it is left as
it is.
"""

from __future__ import annotations

import weakref

from cputrain.runtime.double_backward import DoubleBackward
from cputrain.runtime.patching import never_compile
from cputrain.runtime.root_forward import outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

POLICY = "replicas"

MODELS = "{models}"
"""Where a sentence tells for how many models it holds."""


class _Outcome:
    """What came of dividing one model's batches; it outlives the model."""

    def __init__(self, model: str, num_replicas: int) -> None:
        self.model = model
        """The name of its class."""
        self.num_replicas = num_replicas
        """How many were asked for or chosen: 0 for none yet, 1 where the whole batch is fastest."""
        self.num_divided_calls = 0
        self.refusals: dict[str, None] = {}
        """Why calls of some kind were left undivided, each reason once."""

    def describe(self) -> str:
        """Return what holds for this model; nothing where no call was fit for dividing yet."""
        reasons = "; ".join(self.refusals)
        if self.num_divided_calls and reasons:
            return (
                f"batches of {self.model} divided among {self.num_replicas} replicas in "
                f"{self.num_divided_calls} calls, undivided in others: {reasons}"
            )
        if reasons:
            return f"batches of {self.model} undivided: {reasons}"
        if self.num_replicas == 1:
            return f"batches of {MODELS} undivided: that is fastest"
        if self.num_divided_calls:
            return f"batches of {MODELS} divided among {self.num_replicas} replicas"
        return ""


class Replicas:
    """The models that were called."""

    def __init__(self, torch: ModuleType, count: int | None) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._count = count
        self._steps = 0
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._derivatives = DoubleBackward(torch)
        self._hook = register_optimizer_step_post_hook(self._stepped)
        never_compile(Replicas._stepped)
        self._models: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._outcomes: list[_Outcome] = []
        self._outermost = outermost(torch)
        self._outermost.add(self._around)

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        if self._derivatives.twice or self._steps == self._since.setdefault(model, self._steps):
            return call(model, *args, **options)
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = self._new(model)
        splitter, outcome = known
        if splitter is None:
            return call(model, *args, **options)
        try:
            return splitter(call, args, options)
        finally:
            outcome.num_divided_calls = splitter.divided

    def _stepped(self, *_: object) -> None:
        self._steps += 1

    def _new(self, model: Any) -> tuple[Any, _Outcome]:
        from cputrain.split import Split, splitter_of

        outcome = _Outcome(type(model).__name__, self._count or 0)
        if isinstance(model, Split) or next(model.parameters(), None) is None:
            return None, outcome  # it divides by itself; there is nothing to learn
        self._outcomes.append(outcome)

        def chose(count: int, _gain: float) -> None:
            outcome.num_replicas = count

        def refused(reason: str) -> None:
            outcome.refusals[reason] = None

        splitter = splitter_of(model, self._count, chose=chose, tell=refused, falls_back=True)
        return splitter, outcome

    def describe(self) -> str:
        if self._derivatives.twice:
            return "batches undivided: the script differentiates gradients again"
        models: dict[str, int] = {}
        for outcome in self._outcomes:
            text = outcome.describe()
            if text:
                models[text] = models.get(text, 0) + 1
        return ", ".join(
            text.replace(MODELS, f"{count} model{'s' * (count > 1)}")
            for text, count in models.items()
        )

    def undo(self) -> None:
        self._outermost.remove(self._around)
        self._derivatives.undo()
        self._hook.remove()


def apply(torch: ModuleType, value: object) -> Replicas | None:
    """Wait for models to be called."""
    if value is None:
        return None
    return Replicas(torch, value if isinstance(value, int) else None)

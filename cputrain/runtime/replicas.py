"""Divides the batches of every model that the script calls among replicas.

Once the script has been through a whole step: if it differentiates gradients again, it is left as
it is.
"""

from __future__ import annotations

import weakref

from cputrain.runtime.derivatives import Derivatives
from cputrain.runtime.exchange import pass_by
from cputrain.runtime.outermost import outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

POLICY = "replicas"


class Replicas:
    """The models that were called."""

    def __init__(self, torch: ModuleType, count: int | None) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._count = count
        self._steps = 0
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._derivatives = Derivatives(torch)
        self._hook = register_optimizer_step_post_hook(self._stepped)
        pass_by(Replicas._stepped.__code__)
        self._models: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models whose batches are divided among the number that was asked for."""
        self._divided: dict[int, int] = {}
        self._refusals: dict[str, None] = {}
        self._outermost = outermost(torch)
        self._outermost.add(self._around)

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        if self._derivatives.twice or self._steps == self._since.setdefault(model, self._steps):
            return call(model, *args, **options)
        splitter = self._models.get(model)
        if splitter is None:
            splitter = self._models[model] = self._new(model)
        if not splitter:
            return call(model, *args, **options)
        output = splitter(call, args, options)
        if self._count is not None and splitter.divided and model not in self._counted:
            self._counted.add(model)
            self._chose(self._count, 1.0)
        return output

    def _stepped(self, *_: object) -> None:
        self._steps += 1

    def _new(self, model: Any) -> Any:
        from cputrain.split import Split, splitter_of

        if isinstance(model, Split) or next(model.parameters(), None) is None:
            return False  # it does so itself; there is nothing to learn
        name = type(model).__name__

        def refused(reason: str) -> None:
            self._refusals[f"batches of {name} undivided: {reason}"] = None

        return splitter_of(model, self._count, chose=self._chose, tell=refused, falls_back=True)

    def _chose(self, count: int, _gain: float) -> None:
        self._divided[count] = self._divided.get(count, 0) + 1

    def describe(self) -> str:
        parts = [
            f"batches of {models} model{'s' * (models > 1)} divided among {count} replicas"
            if count > 1
            else f"batches of {models} model{'s' * (models > 1)} undivided: that is fastest"
            for count, models in sorted(self._divided.items())
        ]
        if self._derivatives.twice:
            parts = ["batches undivided: the script differentiates gradients again"]
        return ", ".join([*parts, *self._refusals])

    def undo(self) -> None:
        self._outermost.remove(self._around)
        self._derivatives.undo()
        self._hook.remove()


def apply(torch: ModuleType, value: object) -> Replicas | None:
    """Wait for models to be called."""
    if value is None:
        return None
    return Replicas(torch, value if isinstance(value, int) else None)

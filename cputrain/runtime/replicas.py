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
        self._divided: dict[int, int] = {}
        self._reasons: dict[str, None] = {}
        self._outermost = outermost(torch)
        self._outermost.add(self._around)

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        if self._derivatives.twice or self._steps == self._since.setdefault(model, self._steps):
            return call(model, *args, **options)
        splitter = self._models.get(model)
        if splitter is None:
            splitter = self._models[model] = self._new(model)
        return splitter(call, args, options) if splitter else call(model, *args, **options)

    def _stepped(self, *_: object) -> None:
        self._steps += 1

    def _new(self, model: Any) -> Any:
        from cputrain.split import Split, splitter_of

        if isinstance(model, Split) or next(model.parameters(), None) is None:
            return False  # it does so itself; there is nothing to learn
        return splitter_of(
            model, self._count, chose=self._chose, tell=self._refused, falls_back=True
        )

    def _chose(self, count: int, _gain: float) -> None:
        self._divided[count] = self._divided.get(count, 0) + 1

    def _refused(self, reason: str) -> None:
        self._reasons[reason] = None

    def describe(self) -> str:
        parts = [
            f"batches of {models} model{'s' * (models > 1)} divided among {count} replicas"
            if count > 1
            else f"batches of {models} model{'s' * (models > 1)} undivided: that is fastest"
            for count, models in sorted(self._divided.items())
        ]
        if self._derivatives.twice:
            parts = ["batches undivided: the script differentiates gradients again"]
        parts += [f"batches undivided: {reason}" for reason in self._reasons]
        return ", ".join(parts)

    def undo(self) -> None:
        self._outermost.remove(self._around)
        self._derivatives.undo()
        self._hook.remove()


def apply(torch: ModuleType, value: object) -> Replicas | None:
    """Wait for models to be called."""
    if value is None:
        return None
    return Replicas(torch, value if isinstance(value, int) else None)

"""Compiles models in place when the script first trains them."""

from __future__ import annotations

import weakref

from cputrain.runtime.outermost import outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

POLICY = "compile"


class Compiled:
    """The models that were compiled."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._compiled: weakref.WeakSet[Any] = weakref.WeakSet()
        self._count = 0
        self._ready = False
        self._outermost = outermost(torch)
        self._outermost.add(self._around)

    def _around(self, model: Any, call: Callable[[], Any]) -> Any:
        # evaluation alone is seldom worth the time that compiling takes
        if self._torch.is_grad_enabled() and model not in self._seen:
            self._seen.add(model)
            if self._may_compile(model):
                self._get_ready()
                model.compile()
                self._compiled.add(model)
                self._count += 1
        return call()

    def _may_compile(self, model: Any) -> bool:
        return (
            model._compiled_call_impl is None
            and not isinstance(model, self._torch.jit.ScriptModule)
            and any(parameter.is_cpu for parameter in model.parameters())
        )

    def _get_ready(self) -> None:
        if self._ready:
            return
        import logging
        import os

        import torch._dynamo.config

        # what cannot be compiled runs as it is, and without a word unless somebody wants to hear it
        torch._dynamo.config.suppress_errors = True
        if "TORCH_LOGS" not in os.environ:
            logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
        self._ready = True

    def describe(self) -> str:
        return f"{self._count} model{'s' * (self._count != 1)} compiled" if self._count else ""

    def undo(self) -> None:
        self._outermost.remove(self._around)
        for model in self._compiled:
            model._compiled_call_impl = None


def apply(torch: ModuleType, value: object) -> Compiled | None:
    """Wait for models to be trained."""
    return Compiled(torch) if value else None

"""Watches a run of `cputrain verify`: each model's calls in training, whole and divided.

The script itself goes on undivided; what was compared is written down, and after so many steps of
an optimizer the run ends.
"""

from __future__ import annotations

import atexit
import json
import os
import weakref

from cputrain.runtime.root_forward import outermost
from cputrain.runtime.trial import end, seed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class Verifier:
    """What was compared so far."""

    def __init__(self, torch: ModuleType, *, fd: int, verify: int, steps: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._torch = torch
        self._fd = fd
        self._replicas = verify
        self._left = steps
        self._owner = os.getpid()
        self._found: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._all: list[Any] = []
        seed(torch)
        outermost(torch).add(self._around)
        register_optimizer_step_post_hook(self._stepped)
        atexit.register(self._tell)

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        trains = self._torch.is_grad_enabled() and model.training
        if trains and any(one.requires_grad for one in model.parameters()):
            from cputrain.split import verify

            found = verify(model, args, options, replicas=self._replicas, call=call)
            if model not in self._found:
                self._found[model] = len(self._all)
                self._all.append(found)
            else:
                number = self._found[model]
                self._all[number] = self._all[number].and_also(found)
        return call(model, *args, **options)

    def _stepped(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            self._tell()
            end()

    def _tell(self) -> None:
        if os.getpid() != self._owner or self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with open(fd, "w", encoding="utf-8") as file:
            json.dump([{**one.as_json(), "good": one.good} for one in self._all], file)

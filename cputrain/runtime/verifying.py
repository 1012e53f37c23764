"""Record a run of `cputrain verify`: compare each training call without and with sharding.

The script itself continues with the outputs of the unsharded call. After a given number of
optimizer steps the comparisons are written as JSON and the run ends.
"""

from __future__ import annotations

import atexit
import weakref

from cputrain.runtime.root_forward import root_forward_of
from cputrain.runtime.trial import end_process, seed
from cputrain.runtime.trial_document import TrialDocument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


class Verifier:
    """Compares the calls of each model, and writes the comparisons when the run ends.

    Args:
        fd: File descriptor that the JSON document is written to.
        verify: Number of replicas.
        steps: Optimizer steps after which the run ends.
    """

    def __init__(self, torch: ModuleType, *, fd: int, verify: int, steps: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._torch = torch
        self._document = TrialDocument(fd)
        self._num_replicas = verify
        self._num_steps_left = steps
        self._indices: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._results: list[Any] = []
        seed(torch)
        root_forward_of(torch).add(self._intercept)
        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._write)

    def _intercept(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_training = self._torch.is_grad_enabled() and model.training
        if is_training and any(param.requires_grad for param in model.parameters()):
            from cputrain.split import verify

            result = verify(model, args, kwargs, replicas=self._num_replicas, call=call)
            if model not in self._indices:
                self._indices[model] = len(self._results)
                self._results.append(result)
            else:
                index = self._indices[model]
                self._results[index] = self._results[index].and_also(result)
        return call(model, *args, **kwargs)

    def _after_step(self, *_: object) -> None:
        self._num_steps_left -= 1
        if self._num_steps_left == 0:
            self._write()
            end_process()

    def _write(self) -> None:
        if self._document.is_due:
            results = [{**result.as_json(), "good": result.good} for result in self._results]
            self._document.write(results)

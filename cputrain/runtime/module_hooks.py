"""Finds the script's own hooks on the modules of a model, also those that it registers later.

A hook sees what its module is given and returns: parts of a batch, numbers of fewer bits, or
nothing at all within a compiled graph, where plain python shows it whole tensors of float32.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

GLOBAL_TABLES = (
    "_global_forward_pre_hooks", "_global_forward_hooks",
    "_global_backward_pre_hooks", "_global_backward_hooks",
)  # fmt: skip


class ModuleHooks:
    """Tells of each model whether it has hooks, at the cost of one comparison where it has none."""

    def __init__(self, torch: ModuleType) -> None:
        self._handle: Any = torch.utils.hooks.RemovableHandle
        self._tables = [getattr(torch.nn.modules.module, name) for name in GLOBAL_TABLES]
        self._free_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Models without hooks, and the number of the next hook's handle when that was seen."""

    def find(self, model: Any) -> str:
        """Return which module of the model has a hook, as half a sentence; or nothing."""
        next_id = self._handle.next_id  # torch counts every hook that is registered anywhere
        if self._free_at.get(model) == next_id:
            return ""
        found = self._search(model)
        if found:
            self._free_at.pop(model, None)  # it may be removed, of which nobody is told
        else:
            self._free_at[model] = next_id
        return found

    def _search(self, model: Any) -> str:
        if any(is_foreign(hook) for table in self._tables for hook in table.values()):
            return "every module has a hook"
        for name, module in model.named_modules():
            for table in TABLES:
                if any(map(is_foreign, module.__dict__.get(table, {}).values())):
                    return f"{name or 'the model'} ({type(module).__name__}) has a hook"
        return ""


def is_foreign(hook: Any) -> bool:
    """Tell whether a hook is the script's, and not of torch.nn.utils, as that of weight_norm is."""
    return not type(hook).__module__.startswith("torch.nn.utils.")

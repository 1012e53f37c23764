"""Find the script's hooks on the modules of a model, including those that it registers later.

A hook sees its module's inputs and outputs. Under cputrain these would be shards of a batch or bf16
tensors, and a compiled graph may not call it; under python they are whole float32 tensors.
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
    """A cached check for hooks; it costs one comparison per call for models without hooks."""

    def __init__(self, torch: ModuleType) -> None:
        self._handle: Any = torch.utils.hooks.RemovableHandle
        self._tables = [getattr(torch.nn.modules.module, name) for name in GLOBAL_TABLES]
        self._checked_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Models without hooks, and the id of the next hook handle when they were checked."""

    def find(self, model: Any) -> str:
        """Return which module of the model has a hook, as a clause; "" without hooks."""
        next_id = self._handle.next_id  # torch numbers every hook that is registered
        if self._checked_at.get(model) == next_id:
            return ""
        reason = self._search(model)
        if reason:
            self._checked_at.pop(model, None)  # search again: removal of a hook changes no counter
        else:
            self._checked_at[model] = next_id
        return reason

    def _search(self, model: Any) -> str:
        if self._has_global_hook():
            return "every module has a hook"
        for name, module in model.named_modules():
            if _has_hook(module):
                return f"{name or 'the model'} ({type(module).__name__}) has a hook"
        return ""

    def _has_global_hook(self) -> bool:
        return any(is_foreign(hook) for table in self._tables for hook in table.values())

    def holders(self, model: Any) -> set[Any]:
        """Return the modules of a model that have a hook, or have one within them."""
        if not self.find(model):
            return set()
        if self._has_global_hook():
            return set(model.modules())
        return {module for module in model.modules() if any(map(_has_hook, module.modules()))}


def _has_hook(module: Any) -> bool:
    tables = (module.__dict__.get(table, {}) for table in TABLES)
    return any(is_foreign(hook) for table in tables for hook in table.values())


def is_foreign(hook: Any) -> bool:
    """Return whether a hook is the script's, and not one of torch.nn.utils such as weight_norm."""
    return not type(hook).__module__.startswith("torch.nn.utils.")

"""Apply the setting `memory_limit`: calls of models go through the limiter of `cputrain.memory`."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.runtime.patching import Patch, never_compile, uncounted
from cputrain.runtime.root_forward import is_watched, root_forward_of
from cputrain.runtime.saved_tensor_hooks import has_hooks_of_the_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MIB = 1 << 20


class MemoryLimit:
    """The limiter of this process, which calls of models and modules go through.

    Args:
        torch: The torch module.
        limit_bytes: Largest memory of this process.
    """

    def __init__(self, torch: ModuleType, limit_bytes: int) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        from cputrain.memory.limiter import MemoryLimiter

        self._torch = torch
        self._limiter = limiter = MemoryLimiter(limit_bytes)
        self._limit_bytes = limit_bytes
        self._is_on = True
        original: Any = torch.nn.Module._call_impl

        def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
            return limiter.call_module(original, self, *args, **kwargs)

        self._patch = Patch(torch.nn.Module, "_call_impl", _call_impl)
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._call_model)
        self._root_forward.on_compile(self.undo)
        self._hooks = (
            register_optimizer_step_pre_hook(limiter.before_step),
            register_optimizer_step_post_hook(limiter.after_step),
        )
        never_compile(MemoryLimiter.before_step, MemoryLimiter.after_step)
        for function in (MemoryLimiter.call_model, MemoryLimiter.call_module):
            uncounted(function)

    def _call_model(self, call: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if has_hooks_of_the_script() or is_watched(self._torch):
            return call(model, *args, **kwargs)
        return self._limiter.call_model(call, model, *args, **kwargs)

    def describe(self) -> str:
        if not self._is_on:
            return "no memory limit, as the script compiles a model"
        peak = f"{self._limiter.peak_bytes / MIB:,.0f} of {self._limit_bytes / MIB:,.0f} MiB"
        num_modules = len(self._limiter.recomputed)
        if num_modules:
            return f"{counted(num_modules, 'module')} recomputed in backward ({peak})"
        return f"memory below its limit ({peak})"

    def undo(self) -> None:
        """Let autograd keep all that it saves; again, this changes nothing."""
        if not self._is_on:
            return
        self._is_on = False
        for hook in self._hooks:
            hook.remove()
        self._root_forward.remove(self._call_model)
        self._patch.undo()

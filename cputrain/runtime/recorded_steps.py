"""Compile forward and backward of the script's loop, once they were the same for some steps."""

from __future__ import annotations

import os

from cputrain.counting import counted
from cputrain.runtime.patching import never_compile, uncounted
from cputrain.runtime.root_forward import root_forward_of
from cputrain.variables import TRIAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

MIN_SECONDS = 5.0
"""How long a script has trained when its steps are recorded: compiling takes about as long."""


def record_steps(torch: ModuleType) -> RecordedSteps:
    """Record the steps of the script that is launched."""
    from cputrain.step.compiled_step import find_cpp_compiler

    # a trial has few steps, and operators that are replayed need no compiling
    begins_at_once = TRIAL in os.environ or find_cpp_compiler() is None
    return RecordedSteps(torch, after_seconds=0.0 if begins_at_once else MIN_SECONDS)


class RecordedSteps:
    """The recorder of this process, which calls of models go through.

    Args:
        torch: The torch module.
        after_seconds: Seconds of training before steps are recorded.
    """

    def __init__(self, torch: ModuleType, *, after_seconds: float = 0.0) -> None:
        from cputrain.step.recorded.recorder import Recorder
        from cputrain.step.recorded.unseen import UnseenFunctions
        from cputrain.step.recorded.updates import Updates

        self._torch = torch
        self.recorder, self._updates = Recorder(after_seconds=after_seconds), Updates()
        self._unseen = UnseenFunctions(lambda: self.recorder.is_pending, self.recorder.settle)
        never_compile(Recorder.before_step)
        for function in (Recorder.call_model, Recorder._observe_model, Recorder._observe):
            uncounted(function)
        self._record()

    def _record(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._root_forward = root_forward_of(self._torch)
        self._root_forward.add(self.recorder.call_model)
        self._root_forward.on_compile(self._leave)
        self._hook = register_optimizer_step_pre_hook(self.recorder.before_step)

    def redo(self) -> None:
        """Record again after `undo`, with what was compiled before."""
        self._updates.redo()
        self._unseen.redo()
        self._record()

    def _leave(self) -> None:
        """End recording for a script that compiles functions by itself."""
        self.recorder.leave()
        self._updates.undo()

    def describe(self) -> str:
        """Return how many backward passes were compiled, or why none was."""
        recorder = self.recorder
        if recorder.end_reason:
            return f"steps not recorded: {recorder.end_reason}"
        if not recorder.num_compiled:
            return ""
        return (
            f"recorded steps ({counted(recorder.num_compiled, 'backward pass', 'backward passes')})"
        )

    def undo(self) -> None:
        """Have the script's calls made as they are written."""
        self.recorder.before_step()
        self._root_forward.remove(self.recorder.call_model)
        self._hook.remove()
        self._updates.undo()
        self._unseen.undo()

"""Detect whether a script uses double backward (create_graph=True).

Compiled, divided and third-party forwards do not support it: their settings leave such a script
as it is. The first training step shows whether the script does so.
"""

from __future__ import annotations

from cputrain.runtime.patching import Patch, without_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class DoubleBackward:
    """Whether the script has called backward or grad with create_graph=True."""

    def __init__(self, torch: ModuleType) -> None:
        self.is_used = False
        # create_graph is passed by name or at this position
        self._patches = [
            Patch(
                torch.autograd, name, self._with_detection(getattr(torch.autograd, name), position)
            )
            for name, position in (("backward", 3), ("grad", 4))
        ]

    def _with_detection(self, original: Any, position: int) -> Any:
        from functools import wraps

        from torch._C._functorch import peek_interpreter_stack

        @wraps(original)
        def hearing(*args: Any, **kwargs: Any) -> Any:
            # torch.func always passes it, at levels of its own, where models are not changed
            if (
                args[position] if len(args) > position else kwargs.get("create_graph")
            ) and peek_interpreter_stack() is None:
                self.is_used = True
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise

        return hearing

    def undo(self) -> None:
        """Restore torch's functions."""
        for patch in self._patches:
            patch.undo()

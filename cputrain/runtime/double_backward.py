"""Hears whether a script asks for derivatives that it can differentiate again.

What computes a model otherwise than torch does gives none of those: such a script is left as it is.
It has asked by the time it has been through a whole step.
"""

from __future__ import annotations

from cputrain.runtime.patching import Patch, without_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class DoubleBackward:
    """Whether the script asked for a derivative that it can differentiate again."""

    def __init__(self, torch: ModuleType) -> None:
        self.twice = False
        # create_graph is given by name, or in this place
        self._exchanged = [
            Patch(torch.autograd, name, self._hearing(getattr(torch.autograd, name), at))
            for name, at in (("backward", 3), ("grad", 4))
        ]

    def _hearing(self, own: Any, place: int) -> Any:
        from functools import wraps

        from torch._C._functorch import peek_interpreter_stack

        @wraps(own)
        def hearing(*args: Any, **options: Any) -> Any:
            # torch.func always asks for it, on levels of its own, where models are left alone
            if (
                args[place] if len(args) > place else options.get("create_graph")
            ) and peek_interpreter_stack() is None:
                self.twice = True
            try:
                return own(*args, **options)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise

        return hearing

    def undo(self) -> None:
        """Listen no longer."""
        for one in self._exchanged:
            one.undo()

"""Setting `interop_threads`: the number of inter-op threads."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.settings.core.setting import THREADS, Setting, TooLateError
from cputrain.settings.core.values import count
from cputrain.settings.threads import thread_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request

ONCE = "torch takes this number once in a process, before its first parallel work"


class InteropThreadsSetting(Setting[int | None]):
    """Number of operators that run side by side; None is torch's default."""

    name = "interop_threads"
    order = 20
    group = THREADS
    is_advanced = True
    takes = "N|auto"
    help = "operators that run side by side (auto: torch's own number)"
    rule = "a number of threads, or null"
    patches_torch = False

    def decide(self, machine: Machine, request: Request) -> Decision[int | None]:
        """Return torch's default, unless the user set a number.

        Torch allows to set it once in a process, and the script may do so itself.
        """
        user = request.setting(self.name)
        if user is not None:
            number = thread_count(user, machine)
            return self.decision(number, _says(number), user=user)
        return self.decision(
            None,
            "inter-operator threads as torch sets them",
            "only torch.jit.fork uses them, they are not started before, and a script that "
            "sets them itself would fail if they were set already",
            rejected={"1": "it would change nothing for a script that never forks operators"},
        )

    def load(self, document: Any) -> int | None:
        """Return the number that a saved plan holds."""
        return None if document is None else count(document)

    def apply(self, torch: ModuleType, value: int | None) -> InteropThreads | None:
        """Set the number, if the user gave one."""
        if value is None:
            return None
        torch.set_num_interop_threads(value)
        return InteropThreads(value)

    def is_in_effect(self, torch: ModuleType, decision: Decision[int | None]) -> bool:
        """Return whether torch has this number of inter-op threads."""
        return bool(torch.get_num_interop_threads() == decision.value)

    def apply_now(self, torch: ModuleType, decision: Decision[int | None]) -> InteropThreads | None:
        """Set the number. Raises TooLateError if it was set before, or parallel work started."""
        try:
            return self.apply(torch, decision.value)
        except RuntimeError:
            raise TooLateError(ONCE) from None


class InteropThreads:
    """The number of inter-operator threads that was set."""

    def __init__(self, number: int) -> None:
        self._number = number

    def describe(self) -> str:
        return _says(self._number)

    def undo(self) -> None:
        raise TooLateError(ONCE)


def _says(number: int) -> str:
    return counted(number, "inter-operator thread")


SETTING = InteropThreadsSetting()

"""Set torch's number of inter-operator threads."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "interop_threads"


class Interop:
    """The number of inter-operator threads, which torch allows to set once per process."""

    def __init__(self, count: int) -> None:
        self._count = count

    def describe(self) -> str:
        return f"{self._count} inter-operator thread{'s' * (self._count != 1)}"

    def undo(self) -> None:
        raise RuntimeError("torch sets the number of inter-operator threads once in a process")


def apply(torch: ModuleType, value: object) -> Interop | None:
    """Set the number, if the user gave one."""
    if not isinstance(value, int):
        return None
    torch.set_num_interop_threads(value)
    return Interop(value)

"""Request transparent huge pages for the kept heap: see allocator.py."""

from __future__ import annotations

from cputrain.runtime.allocator import KeptMemory
from cputrain.runtime.state import NOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "huge_pages"


class HugePages:
    """The request, which KeptMemory applies as the heap grows."""

    def __init__(self, kept_memory: KeptMemory) -> None:
        self._kept_memory = kept_memory
        kept_memory.uses_huge_pages = True

    def describe(self) -> str:
        kept = self._kept_memory
        return "huge pages" if kept.is_keeping and kept.has_huge_pages else ""

    def undo(self) -> None:
        """Stop requesting huge pages; pages of the heap stay as they are."""
        self._kept_memory.uses_huge_pages = False


def apply(torch: ModuleType, value: object) -> HugePages | None:  # noqa: ARG001
    """Request huge pages, if the plan has them and memory is kept."""
    kept_memory = NOW.applied.get("allocator")
    return HugePages(kept_memory) if value and isinstance(kept_memory, KeptMemory) else None

"""Looks, at the end, whether two OpenMP runtimes were loaded beside each other.

Each has threads of its own: they take turns on the same cores, and with some pairs they deadlock.
Which libraries came along is known only once the script has imported everything.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "openmp"

NAMES = ("libgomp", "libiomp5", "libomp")


class Runtimes:
    """The OpenMP runtimes in this process."""

    def describe(self) -> str:
        loaded = sorted(path.rpartition("/")[2] for path in loaded_runtimes())
        if len(loaded) < 2:
            return ""
        return (
            f"warning: {len(loaded)} OpenMP runtimes are loaded ({', '.join(loaded)}), and their "
            "threads take turns on the same cores; import torch first, or do without the other"
        )

    def undo(self) -> None:
        """Nothing was changed."""


def loaded_runtimes() -> set[str]:
    """The files of OpenMP runtimes that are mapped here; none where there is no such list."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {"/" + line.partition("/")[2].strip() for line in maps if "/" in line}
    except OSError:  # not Linux
        return set()
    return {path for path in paths if path.rpartition("/")[2].startswith(NAMES)}


def apply(torch: ModuleType, value: object) -> Runtimes:  # noqa: ARG001  (it only looks)
    """Look once the script has ended."""
    return Runtimes()

"""glibc's settings, by mallopt: the numbers that a launch puts into the environment.

mallopt takes an int, so what the environment holds above 2 GiB has to be said otherwise. The manual
gives -1 as "never" for giving the heap's end back; measured on training steps that free more than
2 GiB, the largest number gave some of it back at random. Single blocks of 2 GiB and more are left
to mmap: with none allowed (M_MMAP_MAX 0) they cut holes into the heap, which took twice the memory.
"""

from __future__ import annotations

from cputrain.notebook import began
from cputrain.notebook.too_late import RefusedError, TooLateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

    from cputrain.plan import Decision

POLICY = "allocator"

NUMBERS = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_MMAP_MAX_": -4,
}
"""mallopt's name of each variable, from malloc.h."""

OWN = {
    "MALLOC_TRIM_THRESHOLD_": 64 << 20,
    "MALLOC_TOP_PAD_": 128 << 10,
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "MALLOC_MMAP_MAX_": 65536,
}
"""What glibc's thresholds grow to by themselves; once set they grow no more."""

MOST = (1 << 31) - 1
NEVER = -1


class Tuned:
    """The settings, made."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._libc = _libc()
        self._names = tuple(environment)
        for name, value in environment.items():
            if self._libc.mallopt(NUMBERS[name], _fitting(name, int(value))) != 1:
                raise RefusedError(f"glibc refused {name.rstrip('_')} {value}")

    def describe(self) -> str:
        return ""

    def undo(self) -> None:
        """As glibc would have it after a while; what was kept goes back to the kernel."""
        for name in self._names:
            self._libc.mallopt(NUMBERS[name], OWN[name])
        self._libc.malloc_trim(0)


def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        raise RefusedError("this C library has no mallopt")
    libc.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    return libc


def _fitting(name: str, value: int) -> int:
    if value <= MOST:
        return value
    return NEVER if name == "MALLOC_TRIM_THRESHOLD_" else MOST


def note(decision: Decision) -> str:
    """How it differs from what a launch sets."""
    over = [name for name, value in decision.environment.items() if int(value) > MOST]
    said = []
    if "MALLOC_TRIM_THRESHOLD_" in over:
        keep = int(decision.environment["MALLOC_TRIM_THRESHOLD_"]) / 2**30
        said.append(f"what is freed stays with this process, be it more than {keep:.1f} GiB")
    if "MALLOC_MMAP_THRESHOLD_" in over:
        said.append("tensors of 2 GiB and more still go back to the kernel")
    return f"{'; '.join(said)} (mallopt takes no larger numbers)" if said else ""


def is_so(torch: ModuleType, decision: Decision) -> bool:  # noqa: ARG001  (as the others have it)
    """Whether the process began with it."""
    return began.has(decision.environment)


def apply(torch: ModuleType, decision: Decision) -> Tuned:  # noqa: ARG001
    """Set what can be set; a library can be preloaded at the start only."""
    if "LD_PRELOAD" in decision.environment:
        raise TooLateError("a library can be preloaded only when a process starts")
    return Tuned(decision.environment)

"""Setting `allocator`: by default glibc's malloc, set to keep freed memory during training.

A training step frees and allocates the same tensors, tens of megabytes each. glibc's
defaults return such memory to the kernel at once, and each step causes millions of page faults.
`runtime/kept_memory.py` raises three thresholds to keep it. Preloaded allocators are slower as
often as faster (measured: tcmalloc 1.5 times as fast on a ResNet, jemalloc and mimalloc slower than
plain glibc with the settings guides recommend), so none is chosen without a measurement.
"""

from __future__ import annotations

from cputrain.errors import LaunchError, UsageError
from cputrain.record import Record
from cputrain.settings.core.decision import Change, Origin
from cputrain.settings.core.setting import MEMORY, RefusedError, Setting, TooLateError
from cputrain.settings.core.values import fields
from cputrain.suggestions import closest, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request, UserValue
    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation

GIB = 1 << 30
VARIABLES = (
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_",
)  # fmt: skip
"""Environment variables of glibc's malloc; if the user sets one, the allocator is left alone."""

KNOWN = ("tcmalloc", "jemalloc", "mimalloc", "tbbmalloc", "hoard", "snmalloc", "rpmalloc")


class KeepFreed(Record):
    """glibc's malloc, set to keep freed memory."""

    keep_bytes: int
    """Upper bound of the freed memory that is kept."""


class AllocatorSetting(Setting["KeepFreed | str"]):
    """Memory to keep, the path of a library to preload, or "default"."""

    name = "allocator"
    order = 70
    group = MEMORY
    takes = "auto|tuned|default|NAME|PATH"
    help = "memory allocator (tuned: glibc that keeps memory; NAME: tcmalloc, jemalloc, mimalloc)"
    rule = '{"keep_bytes": N}, or a string'
    plain = "default"
    variables = frozenset({"LD_PRELOAD"})
    patches_torch = False
    trial_order = 70

    def decide(self, machine: Machine, request: Request) -> Decision[KeepFreed | str]:
        """Return the allocator that the user chose or preloaded, else glibc that keeps memory.

        Raises:
            UsageError: The allocator is not installed, or glibc is not this machine's C library.
        """
        user = request.setting(self.name)
        if user is not None and user.value == "default":
            return self._unchanged(user.reason, Origin.USER)
        if user is not None and user.value != "tuned":
            return self._preload(user, machine, request)
        preloaded = [name for name in KNOWN if name in request.environment.get("LD_PRELOAD", "")]
        if user is None and preloaded:
            return self._unchanged(
                f"LD_PRELOAD already loads {preloaded[0]}, and is kept", Origin.USER
            )
        variables = [name for name in VARIABLES if name in request.environment]
        if user is None and variables:
            return self._unchanged(f"{variables[0]} was already set, and is kept", Origin.USER)
        if machine.libc is None:
            if user is not None:
                raise UsageError(
                    user.where,
                    "can tune glibc only",
                    found="another C library on this machine",
                    do="Leave it out.",
                )
            return self._unchanged(
                "this machine's C library is not glibc, and has no such settings"
            )
        return self.decision(
            KeepFreed(keep_bytes=keep_bytes(machine, request)),
            "freed memory kept for the next step (glibc malloc)",
            "a step allocates again what the last one freed; returned to the kernel it costs page "
            "faults",
            origin=Origin.RULE if user is None else Origin.USER,
            rejected={
                name: "not measured on this script; preloading it made some scripts slower. "
                + self._how(name, machine)
                for name in ("tcmalloc", "jemalloc", "mimalloc")
            }
            | {"default": "plain glibc returns large tensors to the kernel at every step"},
        )

    def _unchanged(self, reason: str, origin: Origin = Origin.RULE) -> Decision[KeepFreed | str]:
        return self.decision(
            "default",
            "allocator as it is",
            reason,
            origin=origin,
            change=Change.NONE,
            rejected={"tuned": reason},
        )

    def _preload(
        self, user: UserValue, machine: Machine, request: Request
    ) -> Decision[KeepFreed | str]:
        path = user.value if "/" in user.value else machine.preloads.get(user.value)
        if path is None:
            there = ", ".join(machine.preloads) or "none was found in the library folders"
            raise UsageError(
                user.where,
                "must be auto, tuned, default, the path of a library, or the name of one that is "
                f"installed ({there})",
                found=repr(user.value),
                do=_advice(user.value),
            )
        before = request.environment.get("LD_PRELOAD", "")
        return self.decision(
            path,
            f"{path.rpartition('/')[2]} as allocator",
            user=user,
            environment={"LD_PRELOAD": f"{path}:{before}" if before else path},
        )

    def _how(self, name: str, machine: Machine) -> str:
        if name in machine.preloads:
            return f"{self.flag} {name} uses {machine.preloads[name]}"
        return "It is not installed"

    def load(self, document: Any) -> KeepFreed | str:
        """Return the allocator that a saved plan holds."""
        if isinstance(document, str):
            return document
        (kept,) = fields(document, "keep_bytes")
        if type(kept) is not int or not 0 <= kept < 1 << 60:
            raise ValueError(kept)
        return KeepFreed(keep_bytes=kept)

    def is_valid_variable(self, name: str, value: str) -> bool:
        """Return whether the variable is that of the dynamic linker."""
        return name in self.variables

    def inherited(self, value: KeepFreed | str) -> str:
        """Return "tuned" if memory is kept; a library can be preloaded only at process start."""
        return "tuned" if isinstance(value, KeepFreed) else "default"

    def candidates(self, situation: Situation) -> list[str]:
        """Return the allocators that can be preloaded, and the system's default."""
        return [*situation.machine.preloads, "default"]

    def apply(self, torch: ModuleType, value: KeepFreed | str) -> Applied | None:
        """Keep freed memory from the first step on, or report the library that was preloaded."""
        from cputrain.runtime.kept_memory import KeptMemory, PreloadedAllocator

        if isinstance(value, KeepFreed):
            try:
                return KeptMemory(value.keep_bytes)
            except LaunchError:  # python was built with another allocator
                return None
        return None if value == "default" else PreloadedAllocator(value)

    def is_in_effect(self, torch: ModuleType, decision: Decision[KeepFreed | str]) -> bool:
        """Return whether the process started with this library preloaded."""
        from cputrain.runtime.initial_env import started_with

        return started_with(decision.environment)

    def apply_now(self, torch: ModuleType, decision: Decision[KeepFreed | str]) -> Applied:
        """Keep freed memory from the next step on.

        Raises:
            TooLateError: The decision preloads a library.
            RefusedError: The C library is not glibc.
        """
        if decision.environment:
            raise TooLateError("a library can be preloaded only when a process starts")
        applied = self.apply(torch, decision.value)
        if applied is None:
            raise RefusedError("this C library has no mallopt")
        return applied


def keep_bytes(machine: Machine, request: Request) -> int:
    """Return how much freed memory one rank's processes may keep together: a quarter of it all."""
    memory = machine.budget.memory_bytes or 64 * GIB
    return min(16 * GIB, memory // 4) // (request.rank.count if request.rank else 1)


def _advice(value: str) -> str:
    """Return what to do about an allocator that is not installed, or does not exist."""
    if value.lower() in KNOWN:
        return (
            f"Install {value.lower()} with the system's package manager, or leave the option out: "
            "glibc then keeps memory, too."
        )
    return (
        did_you_mean(closest(value, ("tuned", "default", *KNOWN)))
        or "Install it with the system's package manager, or give its path."
    )


SETTING = AllocatorSetting()

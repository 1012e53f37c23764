"""Setting `allocator`: by default glibc's malloc, set to keep freed memory during training.

A training step frees and allocates the same tensors, tens of megabytes each. glibc's
defaults return such memory to the kernel at once, and each step causes millions of page faults.
`runtime/allocator.py` raises three thresholds to keep it. Preloaded allocators are slower as often
as faster (measured: tcmalloc 1.5 times as fast on a ResNet, jemalloc and mimalloc slower than plain
glibc with the settings guides recommend), so none is chosen without a measurement.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="allocator",
    takes="auto|tuned|default|NAME|PATH",
    help="memory allocator (tuned: glibc that keeps memory; NAME: tcmalloc, jemalloc, mimalloc)",
)

GIB = 1 << 30
VARIABLES = (
    "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_",
)  # fmt: skip
"""Environment variables of glibc's malloc; if the user sets one, the allocator is left alone."""

KNOWN = ("tcmalloc", "jemalloc", "mimalloc", "tbbmalloc", "hoard", "snmalloc", "rpmalloc")


def decide(machine: Machine, request: Request) -> Decision:
    """Return the allocator that the user chose or preloaded, else glibc that keeps freed memory.

    Raises:
        UsageError: The allocator is not installed, or glibc is not this machine's C library.
    """
    asked = request.setting(KNOB.name)
    if asked is not None and asked.value == "default":
        return _untouched(f"{asked.where} says so", Origin.USER)
    if asked is not None and asked.value != "tuned":
        return _preloaded(asked.value, asked.where, machine, request)
    preloaded = [name for name in KNOWN if name in request.environment.get("LD_PRELOAD", "")]
    if asked is None and preloaded:
        return _untouched(f"LD_PRELOAD already loads {preloaded[0]}, and is kept", Origin.USER)
    variables = [name for name in VARIABLES if name in request.environment]
    if asked is None and variables:
        return _untouched(f"{variables[0]} was already set, and is kept", Origin.USER)
    if machine.libc is None:
        if asked is not None:
            raise UsageError(
                asked.where,
                "can tune glibc only",
                found="another C library on this machine",
                do="Leave it out.",
            )
        return _untouched("this machine's C library is not glibc, and has no such settings")
    return Decision(
        policy=KNOB.name,
        value={"keep_bytes": keep_bytes(machine, request)},
        says="freed memory kept for the next step (glibc malloc)",
        reason="a step allocates again what the last one freed; returned to the kernel it costs "
        "page faults",
        origin=Origin.RULE if asked is None else Origin.USER,
        change=Change.EXACT,
        rejected={
            name: "not measured on this script; preloading it made some scripts slower. "
            + _how(name, machine)
            for name in ("tcmalloc", "jemalloc", "mimalloc")
        }
        | {"default": "plain glibc returns large tensors to the kernel at every step"},
    )


def keep_bytes(machine: Machine, request: Request) -> int:
    """Return how much freed memory one rank's processes may keep together: a quarter of it all."""
    memory = machine.budget.memory_bytes or 64 * GIB
    return min(16 * GIB, memory // 4) // (request.rank.count if request.rank else 1)


def _preloaded(value: str, where: str, machine: Machine, request: Request) -> Decision:
    path = value if "/" in value else machine.preloads.get(value)
    if path is None:
        there = ", ".join(machine.preloads) or "none was found in the library folders"
        raise UsageError(
            where,
            "must be auto, tuned, default, the path of a library, or the name of one that is "
            f"installed ({there})",
            found=repr(value),
            do="Install it with the system's package manager, or give its path.",
        )
    before = request.environment.get("LD_PRELOAD", "")
    return Decision(
        policy=KNOB.name,
        value=path,
        says=f"{path.rpartition('/')[2]} as allocator",
        reason=f"{where} says so",
        origin=Origin.USER,
        change=Change.EXACT,
        environment={"LD_PRELOAD": f"{path}:{before}" if before else path},
    )


def _untouched(reason: str, origin: Origin = Origin.RULE) -> Decision:
    return Decision(
        policy=KNOB.name,
        value="default",
        says="allocator as it is",
        reason=reason,
        origin=origin,
        rejected={"tuned": reason},
    )


def _how(name: str, machine: Machine) -> str:
    if name in machine.preloads:
        return f"{KNOB.flag} {name} uses {machine.preloads[name]}"
    return "It is not installed"

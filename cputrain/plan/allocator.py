"""The memory allocator: the system's, told to keep what training will ask for again.

A training step frees and asks for the same tensors, tens of megabytes each. glibc's defaults hand
such memory back to the kernel at once, and every step pays millions of page faults to get it back
zeroed. Raising three thresholds keeps it. Preloaded allocators are slower as often as faster
(measured: tcmalloc 1.5 times as fast on a ResNet, jemalloc and mimalloc slower than plain glibc
with the settings guides recommend), so none is used by name alone.
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
THRESHOLDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
KNOWN = ("tcmalloc", "jemalloc", "mimalloc", "tbbmalloc", "hoard", "snmalloc", "rpmalloc")


def decide(machine: Machine, request: Request) -> Decision:
    """The user's word, else what is preloaded or set already, else glibc tuned where it is used."""
    asked = request.setting(KNOB.name)
    if asked is not None and asked.value == "default":
        return _untouched(f"{asked.where} says so", Origin.USER)
    if asked is not None and asked.value != "tuned":
        return _preloaded(asked.value, asked.where, machine, request)
    preloaded = [name for name in KNOWN if name in request.environment.get("LD_PRELOAD", "")]
    if asked is None and preloaded:
        return _untouched(f"LD_PRELOAD already loads {preloaded[0]}, and is kept", Origin.USER)
    kept = [name for name in (*THRESHOLDS, "MALLOC_MMAP_MAX_") if name in request.environment]
    if asked is None and kept:
        return _untouched(f"{kept[0]} was already set, and is kept", Origin.USER)
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
        value="tuned",
        says="glibc malloc tuned to keep memory",
        reason="a step asks again for what the last one freed; given back to the kernel it costs "
        "page faults",
        origin=Origin.RULE if asked is None else Origin.USER,
        change=Change.EXACT,
        environment=thresholds(machine.libc, machine.budget.memory_bytes),
        rejected={
            name: "not measured on this script; preloading it made some scripts slower. "
            + _how(name, machine)
            for name in ("tcmalloc", "jemalloc", "mimalloc")
        }
        | {"default": "plain glibc gives large tensors back to the kernel at every step"},
    )


def thresholds(libc: tuple[int, int], memory: int | None) -> dict[str, str]:
    """glibc's settings, smaller where memory is: what is kept is at most a quarter of it."""
    memory = memory or 64 * GIB
    keep = {
        "MALLOC_TRIM_THRESHOLD_": str(min(16 * GIB, memory // 4)),
        "MALLOC_TOP_PAD_": str(min(GIB // 4, memory // 64)),
    }
    # up to 2.34 a threshold above 32 MiB is refused in silence, and only "never" keeps large ones
    if libc < (2, 35):
        return {**keep, "MALLOC_MMAP_MAX_": "0"}
    return {**keep, "MALLOC_MMAP_THRESHOLD_": str(min(4 * GIB, memory // 8))}


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

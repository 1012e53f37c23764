"""How child processes are started: for cputrain's own pools, and for a script only when asked.

A forked child of a process whose OpenMP threads have started may wait for ever for threads that
were not forked with it (pytorch#17199), so a pool of ours never forks such a process. A script's
default is its own business: one without a main guard works with fork and breaks with spawn.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.plan.decision import Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

METHODS = ("fork", "spawn", "forkserver")

KNOB = Knob(
    name="start_method",
    takes="auto|fork|spawn|forkserver",
    help="how the script's child processes start (auto: its own default, unchanged)",
    choices=("auto", *METHODS),
)


def methods_of(system: str) -> tuple[str, ...]:
    """What a platform offers."""
    if system == "win32":
        return ("spawn",)
    return METHODS


def for_pools(system: str, *, others_run: str) -> tuple[str, str]:
    """The method of our own pools, and why; `others_run` says what else runs in the process."""
    if system == "win32":
        return "spawn", "Windows has no other"
    if system == "darwin":
        return "spawn", "forking is unsafe on macOS once system libraries have started threads"
    if others_run:
        return "forkserver", f"{others_run}, and a forked process would be a part of it only"
    return "fork", "nothing else runs in the process, and a fork is ready in milliseconds"


def script_default(system: str, python: tuple[int, int]) -> str:
    """What multiprocessing uses when nobody says anything."""
    if system in ("win32", "darwin"):
        return "spawn"
    return "forkserver" if python >= (3, 14) else "fork"


def decide(machine: Machine, request: Request) -> Decision:
    """The script keeps its default unless the user asks."""
    asked = request.setting(KNOB.name)
    default = script_default(machine.system, request.python)
    pools, why = for_pools(machine.system, others_run="")
    if asked is not None:
        if asked.value not in methods_of(machine.system):
            raise UsageError(
                asked.where,
                f"must be one of {', '.join(methods_of(machine.system))} on this platform",
                found=repr(asked.value),
                do="Leave it out to keep the script's own default.",
            )
        return Decision(
            policy=KNOB.name,
            value={"script": asked.value, "pools": asked.value},
            says=f"child processes by {asked.value}",
            reason=f"{asked.where} says so",
            origin=Origin.USER,
        )
    return Decision(
        policy=KNOB.name,
        value={"script": None, "pools": pools},
        says=f"child processes as the script starts them ({default}); our pools by {pools}",
        reason=f"a script without a main guard breaks under another method; pools: {why}",
        rejected={
            method: f"the script's default is {default}, and is never changed unasked; say "
            f"{KNOB.flag} {method}"
            for method in methods_of(machine.system)
            if method != default
        },
    )

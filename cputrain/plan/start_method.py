"""Setting `start_method`: of cputrain's pools, and of the script only if the user sets it.

A forked child of a process whose OpenMP threads have started may wait forever for threads that
do not exist in it (pytorch#17199), so cputrain's pools never fork such a process. A script's
default stays: without a main guard it works with fork and breaks with spawn.
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
    """Return the start methods of a platform."""
    if system == "win32":
        return ("spawn",)
    return METHODS


def for_pools(system: str, *, others_run: str) -> tuple[str, str]:
    """Return the start method of cputrain's pools, and the reason.

    Args:
        system: `sys.platform`.
        others_run: What else runs in the process, such as other threads; "" if nothing does.
    """
    if system == "win32":
        return "spawn", "Windows has no other"
    if system == "darwin":
        return "spawn", "forking is unsafe on macOS once system libraries have started threads"
    if others_run:
        return "forkserver", f"{others_run}, and a forked process would be a part of it only"
    return "fork", "nothing else runs in the process, and a fork is ready in milliseconds"


def script_default(system: str, python: tuple[int, int]) -> str:
    """Return multiprocessing's default start method."""
    if system in ("win32", "darwin"):
        return "spawn"
    return "forkserver" if python >= (3, 14) else "fork"


def decide(machine: Machine, request: Request) -> Decision:
    """Return the script's default, unless the user set a method.

    Raises:
        UsageError: The platform does not have the method.
    """
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

"""Setting `start_method`: of cputrain's pools, and of the script only if the user sets it.

A forked child of a process whose OpenMP threads have started may wait forever for threads that
do not exist in it (pytorch#17199), so cputrain's pools never fork such a process. A script's
default stays: without a main guard it works with fork and breaks with spawn.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.record import Record
from cputrain.settings.core.decision import Change
from cputrain.settings.core.setting import THREADS, Setting
from cputrain.settings.core.values import fields, one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request

METHODS = ("fork", "spawn", "forkserver")


class StartMethods(Record):
    """Start methods of child processes."""

    script: str | None
    """Method of the script's multiprocessing; None keeps its default."""

    pools: str
    """Method of cputrain's pools."""


class StartMethodSetting(Setting[StartMethods]):
    """How child processes are started."""

    name = "start_method"
    order = 110
    group = THREADS
    is_advanced = True
    takes = "auto|fork|spawn|forkserver"
    help = "how the script's child processes start (auto: its own default, unchanged)"
    choices = ("auto", *METHODS)
    rule = '{"script": a method or null, "pools": a method}'
    change = Change.NONE
    patches_torch = False

    def decide(self, machine: Machine, request: Request) -> Decision[StartMethods]:
        """Return the script's default, unless the user set a method.

        Raises:
            UsageError: The platform does not have the method.
        """
        user = request.setting(self.name)
        methods = methods_of(machine.system)
        if user is not None:
            if user.value not in methods:
                raise UsageError(
                    user.where,
                    f"must be one of {', '.join(methods)} on this platform",
                    found=repr(user.value),
                    do="Leave it out to keep the script's own default.",
                )
            return self.decision(
                StartMethods(script=user.value, pools=user.value),
                f"child processes by {user.value}",
                user=user,
            )
        default = script_default(machine.system, request.python)
        pools, why = for_pools(machine.system, others_run="")
        return self.decision(
            StartMethods(script=None, pools=pools),
            f"child processes as the script starts them ({default}); our pools by {pools}",
            f"a script without a main guard breaks under another method; pools: {why}",
            rejected={
                method: f"the script's default is {default}, and is never changed unasked; say "
                f"{self.flag} {method}"
                for method in methods
                if method != default
            },
        )

    def load(self, document: Any) -> StartMethods:
        """Return the start methods that a saved plan holds."""
        script, pools = fields(document, *StartMethods.record_fields)
        return StartMethods(
            script=None if script is None else one_of(script, *METHODS),
            pools=one_of(pools, *METHODS),
        )

    def has_effect(self, decision: Decision[StartMethods]) -> bool:
        """Return whether the script's start method is set."""
        return decision.value.script is not None

    def modules(self, value: StartMethods) -> tuple[str, ...]:
        """Return multiprocessing, if the script's start method is set."""
        return () if value.script is None else ("multiprocessing",)

    def after_import(self, module: ModuleType, value: StartMethods) -> None:
        """Change the default of multiprocessing: a script may still call set_start_method."""
        contexts: Any = module.context
        contexts._default_context._default_context = contexts._concrete_contexts[value.script]

    def is_in_effect(self, torch: ModuleType, decision: Decision[StartMethods]) -> bool:
        """Return whether the start method is set already."""
        import multiprocessing

        return multiprocessing.get_start_method(allow_none=True) == decision.value.script

    def apply_now(
        self, torch: ModuleType, decision: Decision[StartMethods]
    ) -> ScriptStartMethod | None:
        """Set the start method."""
        method = decision.value.script
        return None if method is None else ScriptStartMethod(method)


class ScriptStartMethod:
    """The start method that was set in a running process, and the one before."""

    def __init__(self, method: str) -> None:
        import multiprocessing

        self._ours = method
        self._before = multiprocessing.get_start_method(allow_none=True)
        multiprocessing.set_start_method(method, force=True)

    def describe(self) -> str:
        return ""

    def undo(self) -> None:
        import multiprocessing

        if multiprocessing.get_start_method(allow_none=True) == self._ours:
            multiprocessing.set_start_method(self._before, force=True)


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


SETTING = StartMethodSetting()

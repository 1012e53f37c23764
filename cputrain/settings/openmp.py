"""Decision on the OpenMP runtime: always torch's own, with the user's variables kept.

No option selects another runtime: two can deadlock, and none was measured to be faster.
"""

from __future__ import annotations

from cputrain.settings.core.decision import Origin
from cputrain.settings.core.setting import Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied

BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


class OpenMPSetting(Setting[None]):
    """The OpenMP runtime: the one that torch ships."""

    name = "openmp"
    order = 90
    rule = "null"

    def decide(self, machine: Machine, request: Request) -> Decision[None]:
        """Change nothing; warn about variables that bind threads."""
        bound = [
            name
            for name in BINDING
            if request.environment.get(name, "").lower() not in ("", "false", "disabled", "none")
        ]
        kept = sorted(
            name for name in request.environment if name.startswith(("OMP_", "KMP_", "GOMP_"))
        )
        warning = ""
        if bound:
            warning = (
                f"{' and '.join(bound)} pins the thread that imports torch to one core, and loader "
                f"workers forked from it stay there; unset {'it' if len(bound) == 1 else 'them'} "
                "and use --placement, which has no such fault"
            )
        return self.decision(
            None,
            "OpenMP as torch ships it",
            f"{', '.join(kept)} set by you, and kept"
            if kept
            else "it runs with no binding variables: a mask on the process places it",
            origin=Origin.USER if kept else Origin.RULE,
            rejected={
                "libiomp5": "another OpenMP runtime beside the one torch is linked to can "
                "deadlock, and was not measured to be faster here",
                "pinning": "OMP_PROC_BIND and its kin pin the importing thread and all that is "
                "forked from it to one core; --placement masks the process instead",
            },
            warning=warning,
        )

    def load(self, document: Any) -> None:
        """Return None, the only value."""
        if document is not None:
            raise ValueError(document)

    def apply(self, torch: ModuleType, value: None) -> Applied:
        """Report the runtimes that are loaded when the script ends."""
        from cputrain.runtime.openmp import Runtimes

        return Runtimes()


SETTING = OpenMPSetting()

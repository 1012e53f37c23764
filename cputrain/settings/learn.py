"""Setting `learn`: settings are tried in the script's own steps, and what is faster stays."""

from __future__ import annotations

from cputrain.settings.core.setting import OTHERS, Switch, TooLateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied


class LearnSetting(Switch):
    """Whether the run learns which settings are faster."""

    name = "learn"
    excluded_by = frozenset({"reproducible"})
    order = 200
    group = OTHERS
    implied = "on"
    help = "try settings in the script's own steps, keep what is faster (auto: off)"
    says_on = "settings learnt during the run"
    says_off = "settings stay as planned"
    patches_torch = False
    reason = "a script's steps are varied only if you say so"

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return on if the user turned it on, and no other rank waits for this one's steps."""
        user = request.setting(self.name)
        if user is not None and user.value == "on" and request.rank is not None:
            why = "ranks wait for one another, so their steps do not show what is faster"
            return self.decision(False, self.says_off, why, rejected={"on": why})
        return super().decide(machine, request)

    def apply_now(self, torch: ModuleType, decision: Decision[bool]) -> Applied | None:
        """Raise TooLateError: models may have been called already."""
        raise TooLateError("learning begins with the process: cputrain launch --learn on")


SETTING = LearnSetting()

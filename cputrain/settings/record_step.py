"""Setting `record_step`: forward and backward of the script's loop as one compiled function."""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation


class RecordStepSetting(Switch):
    """Whether steps that are the same each time are compiled as a whole."""

    name = "record_step"
    excluded_by = frozenset({"memory_limit", "reproducible"})
    order = 195
    group = ARITHMETIC
    help = "compile forward and backward of small networks' loops (default: off)"
    says_on = "recorded steps"
    says_off = "steps as the script makes them"
    reason = "compiling takes seconds, and pays for small networks only: a matter of measuring"
    trial_order = 95
    is_expensive_to_try = True

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return on if the user asked for it by name: a run compiles only what is faster."""
        user = request.settings.get(self.name)
        if user is not None and user.value == "auto":
            return self.decision(True, self.says_on, user=user)
        return super().decide(machine, request)

    def candidates(self, situation: Situation) -> list[str]:
        """Return on."""
        return ["on"]

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Record calls of models."""
        from cputrain.runtime.recorded_steps import record_steps

        return record_steps(torch) if value else None


SETTING = RecordStepSetting()

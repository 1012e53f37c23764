"""Setting `loader`: cputrain's DataLoader in place of torch's."""

from __future__ import annotations

from cputrain.settings.core.setting import DATA, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation

MIN_WAIT_FRACTION = 0.05
"""Least fraction of the step time spent waiting for data at which loaders are compared."""


class LoaderSetting(Switch):
    """Whether cputrain's DataLoader takes the place of torch's."""

    name = "loader"
    order = 50
    group = DATA
    help = "cputrain's DataLoader in the place of torch's (auto: on, under Linux)"
    says_on = "cputrain's data loaders"
    says_off = "data loaders as torch has them"
    trial_order = 50

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return on under Linux, unless the user turned it off."""
        user = request.setting(self.name)
        if machine.system != "linux":
            reason = "shared memory by memfd_create needs Linux"
            return self.decision(False, self.says_off, reason, rejected={"on": reason})
        if user is not None and user.value == "off":
            reason = user.reason
            return self.decision(False, self.says_off, user=user, rejected={"on": reason})
        return self.decision(
            True,
            self.says_on,
            ""
            if user
            else "the same batches in the same order; rows in memory are gathered in one call, and "
            "workers hand batches over in memory that is used again",
            user=user,
            rejected={"off": f"measured slower; {self.flag} off"},
        )

    def candidates(self, situation: Situation) -> list[str]:
        """Return off, if the script waits for data under cputrain's loader."""
        return ["off"] if situation.wait_fraction > MIN_WAIT_FRACTION else []

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Patch DataLoader."""
        from cputrain.runtime.loader import Loaders

        return Loaders(torch) if value else None


SETTING = LoaderSetting()

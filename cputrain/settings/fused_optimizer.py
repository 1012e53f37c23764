"""Setting `fused_optimizer`: optimizer steps in one pass over memory instead of a dozen."""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied


class FusedOptimizerSetting(Switch):
    """Whether optimizers use fused kernels where the script chose no implementation."""

    name = "fused_optimizer"
    order = 130
    group = ARITHMETIC
    is_advanced = True
    help = "one-pass updates in Adam, AdamW, SGD and Adagrad (auto: on)"
    says_on = "fused optimizers"
    says_off = "optimizers as the script sets them"

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return on, unless the user turned it off; the run applies it where parameters allow."""
        user = request.setting(self.name)
        if user is not None and user.value == "off":
            rejected = {"on": f"{user.where} is off"}
            return self.decision(False, self.says_off, user=user, rejected=rejected)
        return self.decision(
            True,
            self.says_on,
            ""
            if user
            else "one pass over parameters, gradients and moments instead of one for each "
            "operation",
            user=user,
            rejected={
                "off": "on two threads they took between a quarter and all of the time of the "
                f"others; {self.flag} off"
            },
        )

    def inherited(self, value: bool) -> str:
        """Return the value: it does not depend on the share of the machine."""
        return "on" if value else "off"

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Patch torch.optim."""
        from cputrain.runtime.fused import FusedOptimizers

        return FusedOptimizers(torch) if value else None


SETTING = FusedOptimizerSetting()

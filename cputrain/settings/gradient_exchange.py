"""Setting `gradient_exchange`: all-reduce of ranks on one node in shared memory, or by gloo."""

from __future__ import annotations

from cputrain.settings.core.decision import Change
from cputrain.settings.core.setting import PARALLEL, Setting
from cputrain.settings.core.values import one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied

SAYS = {
    "auto": "ranks add up gradients in shared memory where faster",
    "shared": "ranks add up gradients in shared memory",
    "torch": "gradients as torch exchanges them",
}


class GradientExchangeSetting(Setting[str]):
    """How the ranks of one node add up gradients: auto, shared or torch."""

    name = "gradient_exchange"
    order = 170
    group = PARALLEL
    is_advanced = True
    takes = "auto|shared|torch"
    help = "how ranks of one node add up gradients (auto: in shared memory, where that is faster)"
    choices = ("auto", "shared", "torch")
    rule = "auto, shared or torch"
    plain = "torch"

    def decide(self, machine: Machine, request: Request) -> Decision[str]:
        """Return the user's method; by default both are timed in the first steps of a run."""
        user = request.setting(self.name)
        is_alone = user is None and request.rank is None  # the script may still start ranks
        if user is not None:
            value, reason = user.value, user.reason
        elif machine.system == "linux":
            value, reason = "auto", "gloo copies each gradient through sockets"
        else:
            value, reason = "torch", "shared memory needs Linux"
        return self.decision(
            value,
            SAYS[value],
            reason,
            user=user,
            change=Change.NONE if value == "torch" or is_alone else Change.EXACT,
            rejected={"shared" if value == "torch" else "torch": reason},
        )

    def load(self, document: Any) -> str:
        """Return the method that a saved plan holds."""
        return one_of(document, *SAYS)

    def apply(self, torch: ModuleType, value: str) -> Applied | None:
        """Patch DistributedDataParallel, unless gradients are left to torch."""
        if value == "torch" or not torch.distributed.is_available():
            return None
        from cputrain.runtime.gradient_exchange import GradientExchange

        return GradientExchange(torch, measured=value == "auto")


SETTING = GradientExchangeSetting()

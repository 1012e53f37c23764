"""Setting `optimizer_states`: moments of Adam and AdamW in 8 bits, only if the user allows it.

They take a quarter of the memory. Each step rounds them, to the nearest of 255 or 256 fractions of
the largest in their block of 256.
"""

from __future__ import annotations

from cputrain.settings.core.decision import Change
from cputrain.settings.core.setting import ARITHMETIC, Setting
from cputrain.settings.core.values import one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied

SAYS = {
    "full": "optimizer states as torch keeps them",
    "8bit": "states of Adam and AdamW in 8 bits",
}


class OptimizerStatesSetting(Setting[str]):
    """Bits of the states of Adam and AdamW: full or 8bit."""

    name = "optimizer_states"
    order = 152
    group = ARITHMETIC
    is_advanced = True
    takes = "auto|full|8bit"
    help = "bits of Adam's and AdamW's states (8bit: a quarter of their memory; auto: full)"
    choices = ("auto", *SAYS)
    rule = "full or 8bit"
    change = Change.REDUCED
    lowers_precision = True
    plain = "full"

    def decide(self, machine: Machine, request: Request) -> Decision[str]:
        """Return full, unless the user chose 8 bits."""
        user = request.setting(self.name)
        if user is not None and user.value == "8bit":
            return self.decision("8bit", SAYS["8bit"], user=user)
        return self.decision(
            "full",
            SAYS["full"],
            "" if user else "fewer bits only by the user's word",
            user=user,
            change=Change.NONE,
            rejected={"8bit": f"it changes results; {self.flag} 8bit allows it"},
        )

    def load(self, document: Any) -> str:
        """Return the value that a saved plan holds."""
        return one_of(document, *SAYS)

    def inherited(self, value: str) -> str:
        """Return the value: it does not depend on the share of the machine."""
        return value

    def apply(self, torch: ModuleType, value: str) -> Applied | None:
        """Patch torch.optim."""
        if value != "8bit":
            return None
        from cputrain.runtime.optimizer_states import EightBitStates

        return EightBitStates()


SETTING = OptimizerStatesSetting()

"""Setting `attention`: the kernel of scaled_dot_product_attention, and its precision.

Its backward in bf16 took five times as long as in float32, more than half of a small GPT's step:
all that autocast gained elsewhere.
"""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, Setting
from cputrain.settings.core.values import one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation

SAYS = {
    "math": "attention by plain matmuls",
    "float32": "attention kept in float32",
}


class AttentionSetting(Setting[str | None]):
    """Kernel of attention: math or float32; None is torch's choice."""

    name = "attention"
    order = 180
    group = ARITHMETIC
    is_advanced = True
    takes = "auto|math|float32"
    help = "attention by plain matmuls, or in float32 under autocast (auto: torch's choice)"
    choices = ("auto", "math", "float32")
    rule = "math or float32, or null"
    trial_order = 60

    def decide(self, machine: Machine, request: Request) -> Decision[str | None]:
        """Return torch's default, unless the user or a measurement chose a kernel."""
        user = request.setting(self.name)
        if user is not None:
            return self.decision(user.value, SAYS[user.value], user=user)
        return self.decision(
            None,
            "attention as torch does it",
            "which kernel is faster depends on the shapes: a matter of measuring",
            rejected={kind: f"not measured on this script; {self.flag} {kind}" for kind in SAYS},
        )

    def load(self, document: Any) -> str | None:
        """Return the kernel that a saved plan holds."""
        return None if document is None else one_of(document, *SAYS)

    def candidates(self, situation: Situation) -> list[str]:
        """Return the kernels, if the script computes attention."""
        if "attention" not in situation.uses:
            return []
        return ["math"] if situation.precision == "float32" else ["float32", "math"]

    def apply(self, torch: ModuleType, value: str | None) -> Applied | None:
        """Select the kernel."""
        from cputrain.runtime.attention import Float32Attention, MathAttention

        if value == "math":
            return MathAttention(torch)
        return Float32Attention(torch) if value == "float32" else None


SETTING = AttentionSetting()

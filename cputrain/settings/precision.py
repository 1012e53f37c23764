"""Setting `precision`: bf16 in oneDNN's kernels or by autocast, only if the user allows it.

It needs a CPU with bf16 instructions: emulated bf16 is 48 to 500 times slower than float32
(pytorch#146508).
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
    from cputrain.settings.core.situation import Situation

NATIVE = ("amx_bf16", "avx512_bf16", "bf16")
"""ISA extensions with bf16 products: of Intel, of AMD and Intel, of Arm."""

SAYS = {
    "float32": "full precision",
    "kernels": "bf16 inside matmuls and convolutions",
    "bf16": "bf16 autocast",
}


class PrecisionSetting(Setting[str]):
    """Precision of matmuls and convolutions: float32, kernels or bf16."""

    name = "precision"
    order = 150
    group = ARITHMETIC
    takes = "auto|float32|kernels|bf16"
    help = "bits of arithmetic (kernels: bf16 within matmuls and convolutions; bf16: autocast)"
    choices = ("auto", "float32", "kernels", "bf16")
    rule = "float32, kernels or bf16"
    change = Change.REDUCED
    lowers_precision = True
    plain = "float32"
    trial_order = 10

    def decide(self, machine: Machine, request: Request) -> Decision[str]:
        """Return float32, unless the user chose a reduced precision that the CPU supports."""
        user = request.setting(self.name)
        if user is None or user.value == "float32":
            return self._full(
                "" if user else "fewer bits only by the user's word",
                user=user,
                rejected={
                    kind: f"it changes results; {self.flag} {kind} allows it"
                    for kind in SAYS
                    if kind != "float32"
                },
            )
        if not multiplies_bf16(machine):
            return self._full(
                "this CPU does not multiply bf16 itself, and emulates it many times slower",
                rejected={user.value: "the CPU has none of " + ", ".join(NATIVE)},
                warning=f"{user.where} {user.value} has no effect: this CPU does not multiply bf16 "
                "itself (it has none of " + ", ".join(NATIVE) + ")",
            )
        return self.decision(user.value, SAYS[user.value], user=user)

    def _full(self, reason: str, **details: Any) -> Decision[str]:
        return self.decision("float32", SAYS["float32"], reason, change=Change.NONE, **details)

    def load(self, document: Any) -> str:
        """Return the precision that a saved plan holds."""
        return one_of(document, *SAYS)

    def candidates(self, situation: Situation) -> list[str]:
        """Return the reduced precisions that the user allows and the CPU supports."""
        if situation.precision == "float32" or not multiplies_bf16(situation.machine):
            return []
        return ["bf16", "kernels"] if situation.precision == "bf16" else ["kernels"]

    def apply(self, torch: ModuleType, value: str) -> Applied | None:
        """Enable bf16, in kernels or by autocast."""
        from cputrain.runtime.precision import Autocast, KernelPrecision

        if value == "kernels":
            return KernelPrecision(torch)
        return Autocast(torch) if value == "bf16" else None


def multiplies_bf16(machine: Machine) -> bool:
    """Return whether the CPU has instructions for bf16 products."""
    return any(name in machine.isa for name in NATIVE)


SETTING = PrecisionSetting()

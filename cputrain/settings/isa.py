"""Setting `isa`: the instructions of all libraries, so that machines with others round alike.

Each library picks the newest instructions that a CPU has, and rounds as these do. MKL keeps to a
branch of its code on Intel's CPUs alone: on others there is but one that gives the same results.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.settings.core.exclusion import check_not_excluded
from cputrain.settings.core.setting import ARITHMETIC, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request

VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""What torch, oneDNN and MKL read when a kernel of theirs is first used."""

VALUES = {
    "portable": ("avx2", "AVX2", "COMPATIBLE"),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512"),
}
"""The values of these variables, for each set of instructions."""

NEEDS = {"portable": "avx2", "avx2": "avx2", "avx512": "avx512f"}
"""The feature that a CPU needs for them."""

INTEL = "GenuineIntel"


class IsaSetting(Setting[str | None]):
    """Instructions that torch, oneDNN and MKL use; None for the newest of the CPU."""

    name = "isa"
    order = 163
    group = ARITHMETIC
    is_advanced = True
    takes = "auto|portable|avx2|avx512"
    choices = ("auto", *VALUES)
    help = "instructions of all libraries, for the same bits on other CPUs (auto: the newest)"
    rule = "auto, portable, avx2, avx512, or null"
    plain = "auto"
    patches_torch = False
    variables = frozenset(VARIABLES)

    def decide(self, machine: Machine, request: Request) -> Decision[str | None]:
        """Return what the user set, if the CPU has it; the newest by default.

        Raises:
            UsageError: The CPU has not, MKL ignores it there, or a variable says otherwise.
        """
        user = request.setting(self.name)
        if user is None:
            return self.decision(None, "the newest instructions", "they are the fastest")
        check_not_excluded(self, machine, request, user)
        if NEEDS[user.value] not in machine.isa:
            raise UsageError(
                user.where,
                f"needs a CPU with {NEEDS[user.value].upper()}",
                found=", ".join(machine.isa) or "none of the known instructions",
                do="cputrain info shows what this CPU has.",
            )
        if user.value != "portable" and machine.vendor != INTEL:
            raise UsageError(
                user.where,
                "must be portable on this CPU, as MKL keeps to other instructions on Intel's alone",
                found=f"{user.value} on {machine.model_name or machine.vendor}",
                do=f"{self.flag} portable, here and on the other machine.",
            )
        variables = dict(zip(VARIABLES, VALUES[user.value], strict=True))
        for name, value in variables.items():
            theirs = request.environment.get(name, value)
            if theirs != value:
                raise UsageError(
                    name,
                    f"must be {value} or unset with {user.where} {user.value}",
                    found=theirs,
                    do=f"Try: unset {name}",
                )
        return self.decision(
            user.value, f"instructions as of {user.value}", user=user, environment=variables
        )

    def is_valid_variable(self, name: str, value: str) -> bool:
        """Return whether a variable has one of the values that `decide` gives it."""
        return name in VARIABLES and value in {
            values[VARIABLES.index(name)] for values in VALUES.values()
        }

    def load(self, document: Any) -> str | None:
        """Return what a saved plan holds."""
        if document is not None and document not in VALUES:
            raise ValueError(document)
        return None if document is None else str(document)

    def inherited(self, value: str | None) -> str:
        """Return the value."""
        return value or ""


SETTING = IsaSetting()

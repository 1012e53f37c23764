"""Fewer bits, where the user allows them: bf16 in chosen kernels, or autocast around models.

Whether the CPU multiplies bf16 itself decides: without that it is emulated, and many times slower
(48 to 500 times, pytorch#146508).
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="precision",
    takes="auto|float32|kernels|bf16",
    help="bits of arithmetic (kernels: bf16 within matmuls and convolutions; bf16: autocast)",
    choices=("auto", "float32", "kernels", "bf16"),
)

NATIVE = ("amx_bf16", "avx512_bf16", "bf16")
"""Instructions that multiply bf16: Intel's, AMD's, Arm's."""

SAYS = {
    "float32": "full precision",
    "kernels": "bf16 inside matmuls and convolutions",
    "bf16": "bf16 autocast",
}


def multiplies_bf16(machine: Machine) -> bool:
    """Whether the CPU has an instruction for it."""
    return any(name in machine.isa for name in NATIVE)


def decide(machine: Machine, request: Request) -> Decision:
    """Full precision unless the user says otherwise."""
    asked = request.setting(KNOB.name)
    if asked is None or asked.value == "float32":
        return Decision(
            policy=KNOB.name,
            value="float32",
            says=SAYS["float32"],
            reason="fewer bits only by the user's word" if asked is None else _says_so(asked.where),
            origin=Origin.RULE if asked is None else Origin.USER,
            rejected={
                kind: f"it changes results; {KNOB.flag} {kind} allows it"
                for kind in SAYS
                if kind != "float32"
            },
        )
    if not multiplies_bf16(machine):
        return Decision(
            policy=KNOB.name,
            value="float32",
            says=SAYS["float32"],
            reason="this CPU does not multiply bf16 itself, and emulates it many times slower",
            rejected={asked.value: "the CPU has none of " + ", ".join(NATIVE)},
            warning=f"{asked.where} {asked.value} has no effect: this CPU does not multiply bf16 "
            "itself (it has none of " + ", ".join(NATIVE) + ")",
        )
    return Decision(
        policy=KNOB.name,
        value=asked.value,
        says=SAYS[asked.value],
        reason=_says_so(asked.where),
        origin=Origin.USER,
        change=Change.REDUCED,
    )


def _says_so(where: str) -> str:
    return f"{where} says so"

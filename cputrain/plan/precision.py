"""Setting `precision`: bf16 in oneDNN's kernels or by autocast, only if the user allows it.

It needs a CPU with bf16 instructions: emulated bf16 is 48 to 500 times slower than float32
(pytorch#146508).
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
"""ISA extensions with bf16 products: of Intel, of AMD and Intel, of Arm."""

SAYS = {
    "float32": "full precision",
    "kernels": "bf16 inside matmuls and convolutions",
    "bf16": "bf16 autocast",
}


def multiplies_bf16(machine: Machine) -> bool:
    """Return whether the CPU has instructions for bf16 products."""
    return any(name in machine.isa for name in NATIVE)


def decide(machine: Machine, request: Request) -> Decision:
    """Return float32, unless the user chose a reduced precision that the CPU supports."""
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

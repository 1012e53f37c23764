"""How long an idle compute thread spins before it sleeps, when loader workers want its core.

After each operator libgomp's threads spin for milliseconds, waiting for the next one. Alone on a
machine that is right: waking takes longer. Beside loader workers it takes the cores they work on,
and a step waits for its data. Measured on 16 cores with short waits and without, against python:
a small network with two workers 1.67 and 0.96 times as fast, a convolutional one with eight 1.86
and 1.23, one whose workers idle 1.93 and 1.91; docs/benchmarks has the rest.
"""

from __future__ import annotations

from cputrain.plan.decision import Change, Decision, Knob, Origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

KNOB = Knob(
    name="short_waits",
    takes="auto|on|off",
    help="let idle compute threads sleep sooner (auto: beside loader workers)",
    choices=("auto", "on", "off"),
)

SPINS = "1000"
"""Some 50 microseconds: longer than the gap between two operators, far shorter than a batch."""

KEPT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def decide(machine: Machine, request: Request) -> Decision:
    """Return shorter spin-waits beside loader workers; always or never if the user set so."""
    asked = request.setting(KNOB.name)
    kept = [name for name in KEPT if name in request.environment]
    if asked is None and kept:
        return _off(f"{kept[0]} was already set, and is kept", Origin.USER)
    if asked is not None and asked.value == "off":
        return _off(f"{asked.where} says so", Origin.USER)
    if machine.libc is None:
        return _off("only libgomp, which comes with torch on glibc systems, is known to spin so")
    if asked is not None:
        return _short("short waits", f"{asked.where} says so").replace(
            origin=Origin.USER, environment={"GOMP_SPINCOUNT": SPINS}
        )
    return _short(
        "short waits beside loader workers",
        "spinning threads would take the cores that loader workers work on",
    )


def _short(says: str, reason: str) -> Decision:
    return Decision(
        policy=KNOB.name,
        value=True,
        says=says,
        reason=reason,
        change=Change.EXACT,
        rejected={
            "always": "without workers waking takes longer than the spinning saves: up to 5 % was "
            f"lost; {KNOB.flag} on does it all the same"
        },
    )


def _off(reason: str, origin: Origin = Origin.RULE) -> Decision:
    return Decision(
        policy=KNOB.name,
        value=False,
        says="waits as OpenMP makes them",
        reason=reason,
        origin=origin,
        rejected={"short": reason},
    )

"""Setting `backend`: kernels of another library for torch's operators, if verified.

The caller of the planner passes the verdicts on backends, as an examination needs processes.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.plan.decision import Change, Decision, Knob, Origin
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.plan.decision import Request, Setting

KNOB = Knob(
    name="backend",
    takes="auto|NAME",
    help="kernels for torch's operations (auto: torch's own, unless others are proved better)",
)

UNSAFE = "--unsafe"
"""Option that allows a backend with wrong results."""

PROVED = "cputrain info --backends --measure"
"""Command that examines correctness and speed of backends."""


class Suits(Record):
    """Verdict on a backend, for training or for evaluation."""

    claims: bool = True
    """Whether the backend supports this mode."""

    fault: str = ""
    """Reason why its results are wrong; "" if they are correct."""

    gain: float | None = None
    """Speed-up over torch; None if any kind of layer is slower."""

    seen: str = ""
    """Summary of the measurement."""


class Candidate(Record):
    """A backend other than the default, with its verdicts."""

    name: str
    """Name that `--backend` takes."""

    environment: dict[str, str] = {}
    """Environment variables that the backend needs."""

    training: Suits
    """Verdict for training."""

    evaluation: Suits
    """Verdict for evaluation without gradients."""

    unsafe: bool = False
    """Whether the user allows it despite a negative verdict."""


def decide(machine: Machine, request: Request) -> Decision:
    """Return torch's kernels, unless the user names a backend or one is verified and faster.

    Raises:
        UsageError: The backend is not available, computes wrong results, or conflicts with another
            setting.
    """
    asked = request.setting(KNOB.name)
    against = _against(request)
    if asked is None:
        return _best(request, against)
    where, name = asked.where, asked.value
    if name == "default":
        return _own(f"{where} says so", Origin.USER, request, against)
    if against:
        raise UsageError(
            where, f"does not go with {against}", found=name, do="Leave one of the two out."
        )
    candidate = next((one for one in request.backends if one.name == name), None)
    if candidate is None:
        raise UsageError(
            where, "must be auto, default or an available backend", found=repr(name),
            do="cputrain info --backends lists them; a running process cannot change it.",
        )  # fmt: skip
    return _asked(asked, candidate)


def _against(request: Request) -> str:
    """Return the user's setting that excludes every backend; "" if there is none."""
    for knob, values in (("compile", ("off",)), ("replicas", ("1",)), ("precision", ("float32",))):
        found = request.settings.get(knob)
        if found is not None and found.value not in values and (
            found.value != "auto" or knob == "replicas"
        ):  # fmt: skip
            return f"{found.where} {found.value}"
    return ""


def _best(request: Request, against: str) -> Decision:
    """Return the fastest verified backends for training and for evaluation."""
    training = None if against else _fastest(request.backends, "training")
    evaluation = None if against else _fastest(request.backends, "evaluation")
    if training is None and evaluation is None:
        found = "none of the others is known to be right and faster here"
        return _own(found, Origin.RULE, request, against)
    parts = [
        f"for {what}, {one.name} was {getattr(one, what).seen}"
        for what, one in (("training", training), ("evaluation", evaluation))
        if one is not None
    ]
    return _others(training, evaluation, " and ".join(parts), Origin.MEASURED, asked=False)


def _fastest(candidates: Iterable[Candidate], what: str) -> Candidate | None:
    found = [
        (suits.gain, -number, one)
        for number, one in enumerate(candidates)
        if (suits := getattr(one, what)).gain is not None and not suits.fault
    ]
    return max(found)[2] if found else None


def _asked(asked: Setting, one: Candidate) -> Decision:
    """Return the backend that the user named, in the modes in which it is correct."""
    faults = {what: getattr(one, what).fault for what in ("training", "evaluation")}
    said = "; ".join(f"{what}: {fault}" for what, fault in faults.items() if fault)
    if all(faults.values()) and not one.unsafe:
        raise UsageError(
            asked.where, "must be a backend that is right", found=f"{one.name}: {said}",
            do=f"Leave it out; {UNSAFE} uses it all the same.",
        )  # fmt: skip
    training, evaluation = (
        one if suits.claims and (one.unsafe or not suits.fault) else None
        for suits in (one.training, one.evaluation)
    )
    decision = _others(training, evaluation, f"{asked.where} says so", Origin.USER, asked=True)
    if not said:
        return decision
    if one.unsafe and any(suits.claims and suits.fault for suits in (one.training, one.evaluation)):
        return decision.replace(
            change=Change.REDUCED, warning=f"{one.name} is used though it is not right: {said}"
        )
    only = "evaluation" if evaluation else "training"
    if one.unsafe:
        return decision.replace(warning=f"{one.name} is used in {only} alone: {said}")
    return decision.replace(
        warning=f"{one.name} is used in {only} alone: {said}; {UNSAFE} uses it there as well"
    )


def _own(reason: str, origin: Origin, request: Request, against: str) -> Decision:
    rejected = {
        one.name: f"{against} does not go with it" if against else known(one)
        for one in request.backends
    }
    return Decision(
        policy=KNOB.name,
        value=None,
        says="torch's own kernels",
        reason=reason,
        origin=origin,
        rejected=rejected or {"others": f"none was examined here: {PROVED}"},
    )


def known(one: Candidate) -> str:
    """Format the verdicts on a candidate."""
    parts = [
        f"{what}: {suits.fault or suits.seen}"
        for what, suits in (("training", one.training), ("evaluation", one.evaluation))
    ]
    return "; ".join(parts)


def _others(
    training: Candidate | None,
    evaluation: Candidate | None,
    reason: str,
    origin: Origin,
    *,
    asked: bool,
) -> Decision:
    used = [one for one in (training, evaluation) if one is not None]
    unsafe = any(one.unsafe for one in used)
    value: dict[str, Any] = {
        "training": None if training is None else training.name,
        "evaluation": None if evaluation is None else evaluation.name,
        "asked": asked,
        "unsafe": unsafe,
    }
    says = " and ".join(
        f"{one.name} in {what}"
        for what, one in (("training", training), ("evaluation", evaluation))
        if one is not None
    )
    if training is not None and training == evaluation:
        says = f"{training.name} in training and evaluation"
    return Decision(
        policy=KNOB.name,
        value=value,
        says=says,
        reason=reason,
        origin=origin,
        change=Change.EXACT,
        environment={name: text for one in used for name, text in one.environment.items()},
    )


def decided(value: dict[str, Any] | None) -> tuple[Candidate, ...]:
    """Return candidates from which the planner decides the same again, for one rank's share."""
    if value is None:
        return ()
    names = {value[what] for what in ("training", "evaluation")} - {None}
    good, other = Suits(gain=1.0, seen="proved"), Suits(claims=False, fault="it is not used there")
    return tuple(
        Candidate(
            name=name,
            training=good if value["training"] == name else other,
            evaluation=good if value["evaluation"] == name else other,
            unsafe=value["unsafe"],
        )
        for name in sorted(names)
    )

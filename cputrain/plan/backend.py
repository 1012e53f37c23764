"""Kernels of another library for torch's operations, where they are known to be right.

What is known of each was found out by whoever asks for the plan, as that takes other processes.
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
"""The option that uses a backend that was found to be wrong."""

PROVED = "cputrain info --backends --measure"
"""What tells which are right and faster."""


class Suits(Record):
    """What is known of a backend in training, or in evaluation."""

    claims: bool = True
    """Whether it is meant for that at all."""

    fault: str = ""
    """Why it cannot be trusted, as half a sentence; empty where it can."""

    gain: float | None = None
    """How many times as fast it is, where it is slower for no kind of layer."""

    seen: str = ""
    """What was measured, in words."""


class Candidate(Record):
    """A backend other than the default."""

    name: str
    """What the user calls it."""

    environment: dict[str, str] = {}
    """Variables that it needs."""

    training: Suits
    """What is known of it in training."""

    evaluation: Suits
    """What is known of it where a model is evaluated, without gradients."""

    unsafe: bool = False
    """Whether the user wants it whatever is known."""


def decide(machine: Machine, request: Request) -> Decision:
    """Torch's own, unless the user names another, or one is known to be right and faster."""
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
            where, "must be auto, default or a backend that can be had", found=repr(name),
            do="cputrain info --backends lists them; a running process cannot change it.",
        )  # fmt: skip
    return _asked(asked, candidate)


def _against(request: Request) -> str:
    """What is asked for that no backend goes with, or that its proof does not speak of."""
    for knob, values in (("compile", ("off",)), ("replicas", ("1",)), ("precision", ("float32",))):
        found = request.settings.get(knob)
        if found is not None and found.value not in values and (
            found.value != "auto" or knob == "replicas"
        ):  # fmt: skip
            return f"{found.where} {found.value}"
    return ""


def _best(request: Request, against: str) -> Decision:
    """For each of the two what is known to be fastest."""
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
    """The user's word, as far as it is right."""
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
    """In words."""
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
    """What the same decision is made of once more, for a part of the machine."""
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

"""A plan: every decision for one run, frozen; it can be printed, saved, compared and replayed."""

from __future__ import annotations

import json

from cputrain.errors import PlanError
from cputrain.plan.decision import Change, Decision, Origin
from cputrain.record import Record, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

SCHEMA_VERSION = 1


class Plan(Record):
    """Decisions, each with its reason, and the machine they were made for."""

    machine: str
    """The machine's fingerprint."""

    decisions: tuple[Decision, ...]
    """One for each policy, in the order in which they are carried out."""

    def decision(self, policy: str) -> Decision:
        """One policy's decision."""
        return next(found for found in self.decisions if found.policy == policy)

    def value(self, policy: str) -> Any:
        """What was decided; None too for a policy that a replayed plan does not know."""
        return next((found.value for found in self.decisions if found.policy == policy), None)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that carry the plan out."""
        return {
            name: value
            for decision in self.decisions
            for name, value in decision.environment.items()
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know before the run."""
        return tuple(decision.warning for decision in self.decisions if decision.warning)

    def document(self) -> dict[str, Any]:
        """The JSON document of `cputrain plan --json`, which `launch --plan` replays."""
        return {"schema_version": SCHEMA_VERSION, "kind": "cputrain plan", **self.as_json()}

    def carried(self) -> str:
        """The part that travels into the script's process, without the reasons."""
        values = {decision.policy: plain(decision.value) for decision in self.decisions}
        says = [decision.says for decision in self.decisions if decision.change != Change.NONE]
        document = {
            "schema_version": SCHEMA_VERSION,
            "values": values,
            "says": says,
            "environment": self.environment,
        }
        return json.dumps(document, separators=(",", ":"))


def make_plan(machine: Machine, request: Request) -> Plan:
    """Ask every policy."""
    from cputrain.plan.policies import POLICIES

    return Plan(
        machine=machine.fingerprint(),
        decisions=tuple(policy.decide(machine, request) for policy in POLICIES),
    )


def read_plan(text: str, where: str) -> Plan:
    """A plan from its JSON document; an error that says what is wrong with it."""
    advice = "Make one with: cputrain plan --json SCRIPT > plan.json"
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanError(where, "must be a JSON document", found=str(error), do=advice) from None
    if not isinstance(document, dict) or document.get("kind") != "cputrain plan":
        raise PlanError(where, "must be a plan of cputrain", found="another document", do=advice)
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise PlanError(
            where, f"must have schema_version {SCHEMA_VERSION}", found=repr(version), do=advice
        )
    try:
        return Plan(
            machine=_text(document["machine"]),
            decisions=tuple(_read_decision(entry) for entry in document["decisions"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(
            where, "must hold a machine and its decisions", found=f"a fault: {error}", do=advice
        ) from None


def _read_decision(entry: dict[str, Any]) -> Decision:
    environment = {_text(key): _text(value) for key, value in entry["environment"].items()}
    for name in environment:
        if name not in CARRIERS:
            raise ValueError(f"{name} is no variable that a plan sets")
    return Decision(
        policy=_text(entry["policy"]),
        value=entry["value"],
        says=_text(entry["says"]),
        reason=_text(entry["reason"]),
        origin=Origin(entry["origin"]),
        change=Change(entry["change"]),
        environment=environment,
        rejected={_text(key): _text(value) for key, value in entry["rejected"].items()},
        warning=_text(entry["warning"]),
    )


CARRIERS = frozenset(
    {
        "OMP_NUM_THREADS",
        "LD_PRELOAD",
        "GLIBC_TUNABLES",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_TOP_PAD_",
        "MALLOC_MMAP_MAX_",
    }
)
"""Every variable a plan may set: a replayed file cannot set PATH."""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} should be text")
    return value

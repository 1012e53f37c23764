"""A plan: every decision for one run, frozen; it can be printed, saved, compared and replayed."""

from __future__ import annotations

import json
from types import MappingProxyType

from cputrain.plan.decision import Decision, Origin
from cputrain.plan.threads import thread_variables
from cputrain.record import Record, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.plan.decision import Request

SCHEMA_VERSION = 2

EMPTY: Mapping[str, str] = MappingProxyType({})


class Plan(Record):
    """Decisions, each with its reason, and the machine they were made for."""

    machine: str
    """The machine's fingerprint."""

    settings: dict[str, str] = {}
    """What the user asked for, by knob, as typed."""

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
        """The variables that libraries read when the process starts or while torch is loaded."""
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

    def carried(self, *, rank: str = "", environment: Mapping[str, str] = EMPTY) -> str:
        """Return the part that travels into the script's process, without the reasons.

        Args:
            rank: The rank that the plan is for, as "index/count"; empty for a single process.
            environment: The user's environment, of which the variables of threads travel along: a
                child that was given others keeps to its own.
        """
        return json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "values": {one.policy: plain(one.value) for one in self.decisions},
                "environment": self.environment,
                "settings": self.settings,
                "rank": rank,
                "thread_variables": thread_variables(environment),
            },
            separators=(",", ":"),
        )


def make_plan(machine: Machine, request: Request) -> Plan:
    """Ask every policy."""
    from cputrain.plan.policies import POLICIES

    return Plan(
        machine=machine.fingerprint(),
        settings={name: found.value for name, found in request.settings.items()},
        decisions=tuple(
            _with_its_origin(policy.decide(machine, request), request) for policy in POLICIES
        ),
    )


def _with_its_origin(decision: Decision, request: Request) -> Decision:
    """A setting that was found by measuring stands for the measurement, and not for the user."""
    setting = request.setting(decision.policy)
    if setting is None or not setting.measured or decision.origin is not Origin.USER:
        return decision
    return decision.replace(origin=Origin.MEASURED, reason=setting.measured)

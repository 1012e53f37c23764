"""Plan: the decisions of all policies for one run, which can be printed, saved and replayed."""

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
    """Decisions with their reasons, and the machine for which they were made."""

    machine: str
    """Fingerprint of the machine."""

    settings: dict[str, str] = {}
    """Settings of the user and of tuned plans, by knob, as typed."""

    decisions: tuple[Decision, ...]
    """Decision of each policy, in the order in which they are applied."""

    def decision(self, policy: str) -> Decision:
        """Return the decision of a policy. Raises StopIteration if the plan has none."""
        return next(found for found in self.decisions if found.policy == policy)

    def value(self, policy: str) -> Any:
        """Return the value of a policy's decision; None also if a replayed plan lacks it."""
        return next((found.value for found in self.decisions if found.policy == policy), None)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that libraries read when the process starts or while torch is loaded."""
        return {
            name: value
            for decision in self.decisions
            for name, value in decision.environment.items()
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of all decisions, for the user to read before the run."""
        return tuple(decision.warning for decision in self.decisions if decision.warning)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `cputrain plan --json`, which `launch --plan` replays."""
        return {"schema_version": SCHEMA_VERSION, "kind": "cputrain plan", **self.as_json()}

    def carried(self, *, rank: str = "", environment: Mapping[str, str] = EMPTY) -> str:
        """Return the plan without reasons as JSON, for the environment of the script's process.

        Args:
            rank: Rank that the plan is for, as "index/count"; empty for a single process.
            environment: The user's environment. Its thread variables are included: a child process
                in which they differ keeps its own number of threads.
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
    """Make a plan from the decisions of all policies for a machine and a request."""
    from cputrain.plan.policies import POLICIES

    return Plan(
        machine=machine.fingerprint(),
        settings={name: found.value for name, found in request.settings.items()},
        decisions=tuple(
            _with_its_origin(policy.decide(machine, request), request) for policy in POLICIES
        ),
    )


def _with_its_origin(decision: Decision, request: Request) -> Decision:
    """Return the decision, with the measurement as its origin if one chose the setting."""
    setting = request.setting(decision.policy)
    if setting is None or not setting.measured or decision.origin is not Origin.USER:
        return decision
    return decision.replace(origin=Origin.MEASURED, reason=setting.measured)

"""Plan: the decisions on all settings for one run, which can be printed, saved and replayed."""

from __future__ import annotations

import json
from types import MappingProxyType

from cputrain.record import Record, plain
from cputrain.settings.core.decision import Decision, Origin
from cputrain.settings.core.registry import SETTINGS
from cputrain.settings.threads import thread_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request

SCHEMA_VERSION = 2

EMPTY: Mapping[str, str] = MappingProxyType({})


class Plan(Record):
    """Decisions with their reasons, and the machine for which they were made."""

    machine: str
    """Fingerprint of the machine."""

    settings: dict[str, str] = {}
    """Values of the user and of `cputrain tune`, by setting, as typed."""

    decisions: tuple[Decision[Any], ...]
    """Decision on each setting, in the order of the registry."""

    def decision(self, name: str) -> Decision[Any]:
        """Return the decision on a setting. Raises StopIteration if the plan has none."""
        return next(decision for decision in self.decisions if decision.policy == name)

    def value(self, name: str) -> Any:
        """Return the value of a setting; None also if a replayed plan lacks it."""
        return self.values.get(name)

    @property
    def values(self) -> dict[str, Any]:
        """Values of all settings, by name; `Setting.read` returns one with its type."""
        return {decision.policy: decision.value for decision in self.decisions}

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
        modules = [
            module
            for name, value in self.values.items()
            for module in SETTINGS[name].modules(value)
        ]
        return json.dumps(
            {
                "modules": ",".join(modules),  # first: sitecustomize searches for it
                "schema_version": SCHEMA_VERSION,
                "values": {name: plain(value) for name, value in self.values.items()},
                "environment": self.environment,
                "settings": self.settings,
                "rank": rank,
                "thread_variables": thread_variables(environment),
            },
            separators=(",", ":"),
        )


def make_plan(machine: Machine, request: Request) -> Plan:
    """Make a plan from the decisions on all settings for a machine and a request."""
    return Plan(
        machine=machine.fingerprint(),
        settings={name: user.value for name, user in request.settings.items()},
        decisions=tuple(
            _with_its_origin(setting.decide(machine, request), request)
            for setting in SETTINGS.values()
        ),
    )


def _with_its_origin(decision: Decision[Any], request: Request) -> Decision[Any]:
    """Return the decision, with the measurement as its origin if one chose the setting."""
    setting = request.setting(decision.policy)
    if setting is None or not setting.measured or decision.origin is not Origin.USER:
        return decision
    return decision.replace(origin=Origin.MEASURED, reason=setting.measured)

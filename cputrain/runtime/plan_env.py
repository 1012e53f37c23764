"""The part of a plan that travelled into this process, from the variable CPUTRAIN_PLAN."""

from __future__ import annotations

import json
import os

from cputrain.errors import PlanError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VARIABLE = "CPUTRAIN_PLAN"


class PlanEnv(Record):
    """Decisions without their reasons."""

    values: dict[str, Any]
    """What was decided, by policy."""

    environment: dict[str, str]
    """The variables that libraries read when the process starts or while torch is loaded."""

    settings: dict[str, str] = {}
    """What the user asked for, by knob."""

    rank: str = ""
    """The rank that the plan was made for, as "index/count"; empty for a process on its own."""

    thread_variables: dict[str, str] = {}
    """The variables of threads that the planned process had."""


def read_plan_env(environment: Mapping[str, str] = os.environ) -> PlanEnv:
    """The plan of this process; an error that names the variable where it cannot be read."""
    try:
        document = json.loads(environment.get(VARIABLE, ""))
        return PlanEnv(
            values=dict(document["values"]),
            environment=_texts(document["environment"]),
            settings=_texts(document["settings"]),
            rank=_text(document.get("rank", "")),
            thread_variables=_texts(document.get("thread_variables", {})),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PlanError(
            VARIABLE,
            "must hold what cputrain launch wrote",
            found=f"a fault: {error}",
            do="Unset it, and start the script with cputrain launch.",
        ) from None


def _texts(document: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in dict(document).items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} should be text")
    return value

"""Read the part of a plan that the launcher passes in the variable CPUTRAIN_PLAN."""

from __future__ import annotations

import json
import os

from cputrain import variables
from cputrain.errors import PlanError
from cputrain.record import Record
from cputrain.settings.core.registry import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class PlanEnv(Record):
    """The values of a plan, without their reasons."""

    values: dict[str, Any]
    """Values of the settings, by name."""

    environment: dict[str, str]
    """The variables that libraries read when the process starts or while torch is loaded."""

    settings: dict[str, str] = {}
    """The user's settings as typed, by name."""

    rank: str = ""
    """The rank that the plan was made for, as "index/count"; empty without ranks."""

    thread_variables: dict[str, str] = {}
    """The environment variables for thread counts that the planned process had."""


def read_plan_env(environment: Mapping[str, str] = os.environ) -> PlanEnv:
    """Return the plan of this process.

    Raises:
        PlanError: The variable does not hold a plan.
    """
    try:
        document = json.loads(environment.get(variables.PLAN, ""))
        return PlanEnv(
            values={name: SETTINGS[name].load(value) for name, value in document["values"].items()},
            environment=_texts(document["environment"]),
            settings=_texts(document["settings"]),
            rank=_text(document.get("rank", "")),
            thread_variables=_texts(document.get("thread_variables", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PlanError(
            variables.PLAN,
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

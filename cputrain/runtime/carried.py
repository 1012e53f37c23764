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


class Carried(Record):
    """Decisions without their reasons."""

    values: dict[str, Any]
    """What was decided, by policy."""

    says: tuple[str, ...]
    """What was done before this process began, in words."""

    environment: dict[str, str]
    """The variables that were set for it."""

    settings: dict[str, str] = {}
    """What the user asked for, by knob."""


def read_carried(environment: Mapping[str, str] = os.environ) -> Carried:
    """The plan of this process; an error that names the variable where it cannot be read."""
    try:
        document = json.loads(environment.get(VARIABLE, ""))
        return Carried(
            values=dict(document["values"]),
            says=tuple(map(_text, document["says"])),
            environment=_texts(document["environment"]),
            settings=_texts(document["settings"]),
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

"""Read a saved plan, and validate every value, since the file may come from anywhere.

What passes validation can be applied: a plan that cannot be is rejected when it is read.
"""

from __future__ import annotations

import json

from cputrain.errors import PlanError, text_kind
from cputrain.plan.plan import SCHEMA_VERSION, Plan
from cputrain.settings.core.decision import Change, Decision, Origin
from cputrain.settings.core.registry import SETTINGS, USER_SETTINGS, VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.settings.core.setting import Setting


def read_plan(text: str, where: str) -> Plan:
    """Return the plan of a JSON document.

    Args:
        text: The document.
        where: Name of the file, for messages.

    Raises:
        PlanError: The document is no plan, is of another schema, or holds an invalid value.
    """
    advice = "Make one with: cputrain plan --json SCRIPT > plan.json"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise PlanError(
            where, "must be a JSON document", found=text_kind(text), do=advice
        ) from None
    if not isinstance(document, dict) or document.get("kind") != "cputrain plan":
        raise PlanError(where, "must be a plan of cputrain", found="another document", do=advice)
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise PlanError(
            where, f"must have schema_version {SCHEMA_VERSION}", found=_shown(version), do=advice
        )
    try:
        return Plan(
            machine=_text(document["machine"]),
            settings={
                _setting_name(name): _text(value) for name, value in document["settings"].items()
            },
            decisions=_read_decisions(document["decisions"]),
        )
    except KeyError as error:
        fault = f"no key {error}"
    except AttributeError:
        fault = "another type where an object is expected"
    except (TypeError, ValueError) as error:
        fault = str(error)
    raise PlanError(where, "must hold a machine and its decisions", found=fault, do=advice)


def _read_decisions(entries: object) -> tuple[Decision[Any], ...]:
    if not isinstance(entries, list):
        raise TypeError(f"{_shown(entries)} where a list of decisions is expected")
    decisions = tuple(_read_decision(entry) for entry in entries)
    names = [decision.policy for decision in decisions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two decisions on {twice}")
    return decisions


def _read_decision(entry: dict[str, Any]) -> Decision[Any]:
    name = _text(entry["policy"])
    if name not in SETTINGS:
        raise ValueError(f"an unknown policy {_shown(name)}")
    setting = SETTINGS[name]
    try:
        value = setting.load(entry["value"])
    except ValueError:
        shown = _shown(entry["value"])
        raise ValueError(f"{name} with the value {shown}, which must be {setting.rule}") from None
    return Decision(
        policy=name,
        value=value,
        says=_text(entry["says"]),
        reason=_text(entry["reason"]),
        origin=Origin(_text(entry["origin"])),
        change=Change(_text(entry["change"])),
        environment=dict(_variable(setting, *item) for item in entry["environment"].items()),
        rejected={_text(key): _text(value) for key, value in entry["rejected"].items()},
        warning=_text(entry["warning"]),
    )


def _variable(setting: Setting[Any], name: str, value: object) -> tuple[str, str]:
    if name not in VARIABLES:
        raise ValueError(f"the variable {_shown(name)}, which a plan may not set")
    written = _text(value)
    if not setting.is_valid_variable(name, written):
        raise ValueError(f"{name} set to {_shown(written)}, which {setting.name} may not set")
    return name, written


def _setting_name(name: object) -> str:
    if not isinstance(name, str) or name not in USER_SETTINGS:
        raise ValueError(f"an unknown setting {_shown(name)}")
    return name


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} where a string is expected")
    if not value.replace("\t", " ").isprintable():
        raise ValueError(f"{_shown(value)}, which has unprintable characters")
    return value


def _shown(value: object) -> str:
    """Return the repr of a value, cut to a length that fits a message."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."

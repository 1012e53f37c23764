"""Read a saved plan, and validate every value, since the file may come from anywhere.

What passes validation can be applied: a plan that cannot be is rejected when it is read.
"""

from __future__ import annotations

import json

from cputrain.errors import PlanError
from cputrain.plan.decision import Change, Decision, Origin
from cputrain.plan.plan import SCHEMA_VERSION, Plan
from cputrain.plan.policies import KNOBS
from cputrain.plan.start_method import METHODS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CARRIERS = frozenset(
    {
        "LD_PRELOAD",
        "GOMP_SPINCOUNT",
        "ZENDNNL_MATMUL_WEIGHT_CACHE",
        "ZENDNNL_ZP_COMP_CACHE",
        "ZENDNNL_ENABLE_POSTOP_CACHE",
    }
)
"""Environment variables that a plan may set; a replayed file cannot set any other, as PATH."""

TEXT = frozenset({"LD_PRELOAD"})
"""Variables among them whose values are not numbers."""

MOST = 1 << 16
"""Upper bound of numbers of CPUs, threads and NUMA nodes, above those of any machine."""


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
    except (ValueError, RecursionError) as error:
        raise PlanError(where, "must be a JSON document", found=str(error), do=advice) from None
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
            settings={_knob(name): _text(value) for name, value in document["settings"].items()},
            decisions=_read_decisions(document["decisions"]),
        )
    except KeyError as error:
        fault = f"no key {error}"
    except AttributeError:
        fault = "another type where an object is expected"
    except (TypeError, ValueError) as error:
        fault = str(error)
    raise PlanError(where, "must hold a machine and its decisions", found=fault, do=advice)


def _read_decisions(entries: object) -> tuple[Decision, ...]:
    if not isinstance(entries, list):
        raise TypeError(f"{_shown(entries)} where a list of decisions is expected")
    decisions = tuple(_read_decision(entry) for entry in entries)
    policies = [decision.policy for decision in decisions]
    twice = next((policy for policy in policies if policies.count(policy) > 1), None)
    if twice is not None:
        raise ValueError(f"two decisions on {twice}")
    return decisions


def _read_decision(entry: dict[str, Any]) -> Decision:
    policy = _text(entry["policy"])
    if policy not in VALUES:
        raise ValueError(f"an unknown policy {_shown(policy)}")
    holds, rule = VALUES[policy]
    value = entry["value"]
    if not holds(value):
        raise ValueError(f"{policy} with the value {_shown(value)}, which must be {rule}")
    return Decision(
        policy=policy,
        value=value,
        says=_text(entry["says"]),
        reason=_text(entry["reason"]),
        origin=Origin(_text(entry["origin"])),
        change=Change(_text(entry["change"])),
        environment=dict(_variable(*item) for item in entry["environment"].items()),
        rejected={_text(key): _text(value) for key, value in entry["rejected"].items()},
        warning=_text(entry["warning"]),
    )


def _variable(name: str, value: object) -> tuple[str, str]:
    if name not in CARRIERS:
        raise ValueError(f"the variable {_shown(name)}, which a plan may not set")
    written = _text(value)
    if name not in TEXT and not (written.isascii() and written.isdigit() and len(written) < 20):
        raise ValueError(f"{name} set to {_shown(written)}, which must be a number")
    return name, written


def _knob(name: object) -> str:
    if not isinstance(name, str) or name not in KNOBS:
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


def _count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST


def _numbers(value: object) -> bool:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= MOST
        and all(type(number) is int and 0 <= number < MOST for number in value)
    )


def _switch(value: object) -> bool:
    return type(value) is bool


def _or_none(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or holds(value)


def _object(**fields: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == fields.keys()
        and all(holds(value[name]) for name, holds in fields.items())
    )


def _one_of(*choices: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in choices


def _replicas(value: object) -> bool:
    return value == "auto" or _count(value)


def _bytes(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 60


def _allocator(value: object) -> bool:
    return isinstance(value, str) or _object(keep_bytes=_bytes)(value)


def _name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 100


def _method(value: object) -> bool:
    return isinstance(value, str) and value in METHODS


VALUES: dict[str, tuple[Callable[[object], bool], str]] = {
    "threads": (_count, "a number of threads"),
    "interop_threads": (_or_none(_count), "a number of threads, or null"),
    "placement": (_or_none(_numbers), "a list of CPUs, or null"),
    "memory_policy": (
        _or_none(_object(interleave=_numbers)),
        '{"interleave": [nodes]}, or null',
    ),
    "loader": (_switch, "true or false"),
    "loader_cores": (
        _object(cpus=_or_none(_numbers), threads=_count, compute_threads=_or_none(_count)),
        '{"cpus": [CPUs] or null, "threads": N, "compute_threads": N or null}',
    ),
    "allocator": (_allocator, '{"keep_bytes": N}, or a string'),
    "huge_pages": (_switch, "true or false"),
    "openmp": (lambda value: value is None, "null"),
    "short_waits": (_switch, "true or false"),
    "start_method": (
        _object(script=_or_none(_method), pools=_method),
        '{"script": a method or null, "pools": a method}',
    ),
    "flush_denormals": (_switch, "true or false"),
    "fused_optimizer": (_switch, "true or false"),
    "channels_last": (_switch, "true or false"),
    "precision": (_one_of("float32", "kernels", "bf16"), "float32, kernels or bf16"),
    "replicas": (_or_none(_replicas), "auto, a number of replicas, or null"),
    "gradient_exchange": (_one_of("auto", "shared", "torch"), "auto, shared or torch"),
    "attention": (_or_none(_one_of("math", "float32")), "math or float32, or null"),
    "compile": (_switch, "true or false"),
    "backend": (
        _or_none(
            _object(
                training=_or_none(_name), evaluation=_or_none(_name), asked=_switch, unsafe=_switch
            )
        ),
        '{"training": a name or null, "evaluation": the same, "asked": true or false, '
        '"unsafe": true or false}, or null',
    ),
}
"""Check of each policy's value, and the rule that it enforces, for messages."""

"""Applies the transforms of a plan once torch is loaded, and tells what came of them."""

from __future__ import annotations

import atexit
import os
import sys

from cputrain.runtime import (
    allocator,
    attention,
    backend,
    channels_last,
    compiling,
    denormals,
    fused,
    gradient_exchange,
    huge_pages,
    interop,
    loader,
    loader_cores,
    memory_policy,
    openmp,
    placement,
    precision,
    replicas,
    threads,
)
from cputrain.runtime import shutdown as leaving
from cputrain.runtime import spin_wait as waits
from cputrain.runtime.state import NOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Protocol

    from cputrain.runtime.plan_env import PlanEnv

    class Applied(Protocol):
        """A transform at work."""

        def describe(self) -> str:
            """Tell what holds by now, of what it was to change; nothing if it changed nothing."""

        def undo(self) -> None:
            """Put back what it changed."""

    class Transform(Protocol):
        """A module that carries one decision out."""

        POLICY: str
        """The policy whose decision it carries out."""

        def apply(self, torch: ModuleType, value: object) -> Applied | None:
            """Start it; None where the decision asks for nothing."""


TRANSFORMS: tuple[Transform, ...] = (
    denormals,
    threads,
    interop,
    placement,
    memory_policy,
    allocator,
    huge_pages,
    fused,
    waits,
    loader,
    loader_cores,
    openmp,
    channels_last,
    precision,
    replicas,
    attention,
    compiling,
    backend,
    gradient_exchange,
)
"""Denormals first: the setting is inherited by the threads that anything else may start. Compiling
and backends last: they are within all that is around a model's call."""


def apply_plan(torch: ModuleType, carried: PlanEnv, *, reports: bool, is_planned: bool) -> None:
    """Start every transform that the plan asks for; at the end of the process, say what holds."""
    NOW.launched = True
    NOW.thread_variables = carried.thread_variables
    NOW.is_planned = is_planned or bool(carried.rank)
    for transform in TRANSFORMS:
        if transform.POLICY in carried.values:
            start(transform, torch, carried.values[transform.POLICY])
    NOW.values.update(carried.values)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        leaving.tell_errors()
        atexit.register(leaving.let_go, os.getpid())
    if reports:
        atexit.register(_report, os.getpid())


def start(transform: Transform, torch: ModuleType, value: object) -> None:
    """Start one, and remember what there is to undo."""
    found = transform.apply(torch, value)
    if found is not None:
        NOW.applied[transform.POLICY] = found


def _in_order(applied: dict[str, Applied]) -> list[Applied]:
    """Return the transforms in the order of a plan: a notebook may have started some anew."""
    order = {transform.POLICY: place for place, transform in enumerate(TRANSFORMS)}
    return [applied[name] for name in sorted(applied, key=lambda name: order.get(name, len(order)))]


def _report(owner: int) -> None:
    # a forked child may end as a whole interpreter does; print(file=None) is standard output
    if os.getpid() != owner or sys.stderr is None:
        return
    from cputrain.runtime.report import summary

    try:
        print(summary(_in_order(NOW.applied)), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # standard error is closed: nobody is listening
        return

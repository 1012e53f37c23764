"""Apply the transforms of a plan once torch is loaded, and report their effects at exit."""

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
    shutdown,
    spin_wait,
    threads,
)
from cputrain.runtime.state import NOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Protocol

    from cputrain.runtime.plan_env import PlanEnv

    class Applied(Protocol):
        """An applied transform."""

        def describe(self) -> str:
            """Return the changes in effect now, for the report; "" if there are none."""

        def undo(self) -> None:
            """Revert the changes."""

    class Transform(Protocol):
        """A module that applies one decision of the plan."""

        POLICY: str
        """The policy whose decision the module applies."""

        def apply(self, torch: ModuleType, value: object) -> Applied | None:
            """Apply a decision's value; return None if there is nothing to do."""


TRANSFORMS: tuple[Transform, ...] = (
    denormals,
    threads,
    interop,
    placement,
    memory_policy,
    allocator,
    huge_pages,
    fused,
    spin_wait,
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
"""In order of application. Denormals first: threads inherit the setting from the thread that starts
them. Compiling and backends last: as interceptors of a model's call they are the innermost."""


def apply_plan(torch: ModuleType, plan_env: PlanEnv, *, reports: bool, is_planned: bool) -> None:
    """Apply every transform in the plan, and register the report for the end of the process."""
    NOW.launched = True
    NOW.thread_variables = plan_env.thread_variables
    NOW.is_planned = is_planned or bool(plan_env.rank)
    for transform in TRANSFORMS:
        if transform.POLICY in plan_env.values:
            start(transform, torch, plan_env.values[transform.POLICY])
    NOW.values.update(plan_env.values)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        shutdown.write_errors()
        atexit.register(shutdown.wait_for_threads, os.getpid())
    if reports:
        atexit.register(_report, os.getpid())


def start(transform: Transform, torch: ModuleType, value: object) -> None:
    """Apply one transform, and keep its result in the state for `describe` and `undo`."""
    applied = transform.apply(torch, value)
    if applied is not None:
        NOW.applied[transform.POLICY] = applied


def _in_order(applied: dict[str, Applied]) -> list[Applied]:
    """Return the applied transforms in plan order: a notebook may have applied some again."""
    order = {transform.POLICY: place for place, transform in enumerate(TRANSFORMS)}
    return [applied[name] for name in sorted(applied, key=lambda name: order.get(name, len(order)))]


def _report(pid: int) -> None:
    # forked children may run exit handlers; print(file=None) would be standard output
    if os.getpid() != pid or sys.stderr is None:
        return
    from cputrain.runtime.report import summary

    try:
        print(summary(_in_order(NOW.applied)), file=sys.stderr, flush=True)
    except (OSError, ValueError):  # standard error is closed
        return

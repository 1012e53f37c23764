"""All policies, in the order in which plans list them; new ones are added here."""

from __future__ import annotations

from cputrain.plan import (
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
    start_method,
    threads,
    waits,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.plan.decision import Policy

POLICIES: tuple[Policy, ...] = (
    threads,
    interop,
    placement,
    memory_policy,
    loader,
    loader_cores,
    allocator,
    huge_pages,
    openmp,
    waits,
    start_method,
    denormals,
    fused,
    channels_last,
    precision,
    replicas,
    gradient_exchange,
    attention,
    compiling,
    backend,
)

KNOBS = {policy.KNOB.name: policy.KNOB for policy in POLICIES if policy.KNOB.takes}
"""All settings of the user, by name."""

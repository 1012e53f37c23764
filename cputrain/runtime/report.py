"""The one line after a run."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.runtime.apply import Applied
    from cputrain.runtime.carried import Carried

AT_RUN_TIME = {
    "denormals flushed to zero",
    "fused optimizers",
    "short waits beside loader workers",
    "convolutions channels last",
    "bf16 inside matmuls and convolutions",
    "bf16 autocast",
    "attention by plain matmuls",
    "attention kept in float32",
    "models compiled",
    "ranks add up gradients in shared memory where faster",
    "ranks add up gradients in shared memory",
    "gradients as torch exchanges them",
}
"""Intentions that the transforms report on themselves."""


def summary(carried: Carried, applied: Sequence[Applied]) -> str:
    """What was applied to what."""
    before = [
        said
        for said in carried.says
        if said not in AT_RUN_TIME and "loader" not in said and not said.startswith("batches ")
    ]
    told = [said for transform in applied if (said := transform.describe())]
    during = [said for said in told if said not in before]
    return f"cputrain: {', '.join([*before, *during])}"

"""Subprocess that times the steps of one network: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.steps '{"name": "ppo", "num_threads": 1, "rounds": 9,
        "ways": ["eager"], "jax": ""}'

Used by `compare_steps`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import sys

from cputrain.measure.child import answer_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Time the requested steps."""
    from cputrain.bench.steps.runs import run

    return run(**request)


if __name__ == "__main__":
    sys.exit(answer_case(run_request))

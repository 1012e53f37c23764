"""Subprocess that runs one case: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.devices '{"case": "mlp-64", "devices": ["cuda", "cpu"], "rounds": 3,
                                       "steps": 10, "quick": false}'

Used by `compare_devices`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import sys

from cputrain.bench.devices.cases import select_cases
from cputrain.measure.child import answer_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Run the requested case."""
    from cputrain.bench.devices.runs import run

    (case,) = select_cases(request["case"], quick=request["quick"])
    case = case.replace(batch=request.get("batch", case.batch))
    return run(case, request["devices"], request["rounds"], request["steps"])


if __name__ == "__main__":
    sys.exit(answer_case(run_request))

"""Subprocess that runs one case in one way: JSON request in argv, JSON run on stdout.

python -m cputrain.bench.many '{"way": "many", "network": "mlp", "jobs": 8, "steps": 100}'
"""

from __future__ import annotations

import sys

from cputrain.measure.child import answer_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Run the requested trainings."""
    from cputrain.bench.many.runs import run_way

    return run_way(request["way"], request["network"], request["jobs"], request["steps"])


if __name__ == "__main__":
    sys.exit(answer_case(run_request))

"""Subprocess that runs one case once in one pool: JSON request in argv, JSON run on stdout.

    python -m cputrain.bench.pools '{"case": "tiny-map", "contender": "torch", "processes": 2,
                                     "quick": false}'

Used by `compare_pools`, so that no pool inherits state from another, and the rendering process does
not import torch.
"""

from __future__ import annotations

import sys

from cputrain.bench.pools.cases import find_case
from cputrain.bench.pools.contenders import CONTENDERS
from cputrain.measure.child import answer_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Run the requested case in the requested pool."""
    from cputrain.bench.pools.runs import run

    contender = next(pool for pool in CONTENDERS if pool.name == request["contender"])
    case = find_case(request["case"], request["quick"])
    return run(case, contender, request["processes"]).as_json()


if __name__ == "__main__":
    sys.exit(answer_case(run_request))

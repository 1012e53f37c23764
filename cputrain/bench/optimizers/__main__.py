"""Subprocess that times steps of one optimizer: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.optimizers '{"name": "adam", "cells": [[12, 1000, 1.0]], "threads": 1,
                                          "rounds": 9}'

Used by `compare_optimizers`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import sys

from cputrain.measure.child import answer_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Time the requested cells."""
    from cputrain.bench.optimizers.runs import run

    cells = [(count, size, part) for count, size, part in request["cells"]]
    return {"cells": run(request["name"], cells, request["threads"], request["rounds"])}


if __name__ == "__main__":
    sys.exit(answer_case(run_request))

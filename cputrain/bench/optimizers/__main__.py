"""The process in which steps of an optimizer are timed: JSON in, JSON out.

    python -m cputrain.bench.optimizers '{"name": "adam", "cells": [[12, 1000, 1.0]], "threads": 1,
                                          "rounds": 9}'

Used by `compare_optimizers`, so that the process that renders loads no torch.
"""

from __future__ import annotations

import json
import sys


def main(argv: list[str]) -> int:
    """Time what is asked for."""
    from cputrain.bench.optimizers.runs import run

    request = json.loads(argv[0])
    cells = [(count, size, part) for count, size, part in request["cells"]]
    results = run(request["name"], cells, request["threads"], request["rounds"])
    print(json.dumps({"cells": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

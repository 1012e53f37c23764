"""Subprocess that times steps of one optimizer: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.optimizers '{"name": "adam", "cells": [[12, 1000, 1.0]], "threads": 1,
                                          "rounds": 9}'

Used by `compare_optimizers`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import json
import sys


def main(argv: list[str]) -> int:
    """Time the requested cells and print the results."""
    from cputrain.bench.optimizers.runs import run

    request = json.loads(argv[0])
    cells = [(count, size, part) for count, size, part in request["cells"]]
    results = run(request["name"], cells, request["threads"], request["rounds"])
    print(json.dumps({"cells": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

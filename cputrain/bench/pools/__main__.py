"""Subprocess that runs one case once in one pool: JSON request in argv, JSON run on stdout.

    python -m cputrain.bench.pools '{"case": "tiny-map", "contender": "torch", "processes": 2,
                                     "quick": false}'

Used by `compare_pools`, so that no pool inherits state from another, and the rendering process does
not import torch.
"""

from __future__ import annotations

import json
import sys

from cputrain.bench.pools.cases import find_case
from cputrain.bench.pools.contenders import CONTENDERS
from cputrain.errors import CputrainError


def main(argv: list[str]) -> int:
    """Run the requested case in the requested pool and print the run as JSON; return exit code."""
    from cputrain.bench.pools.runs import run

    request = json.loads(argv[0])
    contender = next(
        candidate for candidate in CONTENDERS if candidate.name == request["contender"]
    )
    try:
        result = run(find_case(request["case"], request["quick"]), contender, request["processes"])
    except CputrainError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result.as_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

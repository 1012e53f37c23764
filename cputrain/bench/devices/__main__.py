"""Subprocess that runs one case: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.devices '{"case": "mlp-64", "devices": ["cuda", "cpu"], "rounds": 3,
                                       "steps": 10, "quick": false}'

Used by `compare_devices`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import json
import sys

from cputrain.bench.devices.cases import select_cases
from cputrain.errors import CputrainError


def main(argv: list[str]) -> int:
    """Run the requested case and print its result as JSON; return the exit code."""
    from cputrain.bench.devices.runs import run

    request = json.loads(argv[0])
    try:
        (case,) = select_cases(request["case"], quick=request["quick"])
        case = case.replace(batch=request.get("batch", case.batch))
        result = run(case, request["devices"], request["rounds"], request["steps"])
    except CputrainError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

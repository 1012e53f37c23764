"""Subprocess that trains networks on one device: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.networks '{"networks": ["resnet18"], "device": "ocl", "batch": 32,
                                        "side": 224, "steps": 10}'

Used by `compare_networks`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import json
import sys

from cputrain.errors import CputrainError


def main(argv: list[str]) -> int:
    """Train the requested networks and print the result as JSON; return the exit code."""
    from cputrain.bench.networks.runs import run

    request = json.loads(argv[0])
    try:
        result = run(
            request["networks"], request["device"], request["batch"], request["side"],
            request["steps"],
        )  # fmt: skip
    except CputrainError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

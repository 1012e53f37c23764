"""Subprocess that trains networks on one device: JSON request in argv, JSON result on stdout.

    python -m cputrain.bench.networks '{"networks": ["resnet18"], "device": "ocl", "batch": 32,
                                        "side": 224, "steps": 10}'

Used by `compare_networks`, so that the rendering process does not import torch.
"""

from __future__ import annotations

import sys

from cputrain.measure.child import answer_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Train the requested networks."""
    from cputrain.bench.networks.runs import run

    return run(
        request["networks"], request["device"], request["batch"], request["side"], request["steps"]
    )


if __name__ == "__main__":
    sys.exit(answer_case(run_request))

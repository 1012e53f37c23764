"""What asking a device for an operator costs, whatever the device does with it.

    python -m cputrain.bench.networks.calls --device ocl

prints one JSON line: microseconds until an elementwise call on 1024 numbers is asked for, and for a
step of a network at batch 1 how long Python takes until all is asked for, beside the step.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch

from cputrain.bench.compare import median
from cputrain.bench.networks.runs import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CALLS = 200
"""Asked for one after the other, without waiting; few enough for a device's queue."""

ROUNDS = 25


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.networks.calls")
    parser.add_argument("--device", default="ocl", help="ocl, cuda, cpu, …")
    parser.add_argument("--network", default="resnet18", help="one of cputrain bench networks")
    parser.add_argument("--side", type=int, default=224, help="pixels of an image's side")
    asked = parser.parse_args(argv)
    steps = run([asked.network], asked.device, 1, asked.side, 10)
    trained = steps["networks"][asked.network]
    print(json.dumps({
        "device": asked.device, "of": steps["of"], "microseconds": calls(asked.device),
        "network": asked.network, "asked": median(trained["asked"]),
        "step": median(trained["seconds"]),
    }))  # fmt: skip
    return 0


def calls(device: str) -> dict[str, float]:
    """Microseconds of each."""
    one, other = (torch.randn(1024).to(device) for _ in range(2))
    finish: Any = getattr(getattr(torch, one.device.type), "synchronize", lambda: None)
    each: dict[str, Callable[[], torch.Tensor]] = {
        "add": lambda: torch.add(one, other),
        "relu": lambda: torch.relu(one),
        "add_": lambda: one.add_(other, alpha=0.0),
    }
    found = {}
    with torch.no_grad():
        for name, call in each.items():
            took = []
            for _ in range(ROUNDS):
                begin = time.perf_counter()
                for _ in range(CALLS):
                    call()
                took.append((time.perf_counter() - begin) / CALLS)
                finish()
            found[name] = round(median(took) * 1e6, 2)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

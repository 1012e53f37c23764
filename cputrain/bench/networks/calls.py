"""Kernel launch latency on a device: host time per operator, without waiting for completion.

    python -m cputrain.bench.networks.calls --device ocl

prints one JSON line: microseconds to enqueue an elementwise operator on 1024 elements, and for a
training step of a network at batch size 1 the host time to enqueue all operators beside the whole
step time.
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
"""Operators enqueued without synchronizing; few enough for a device's queue."""

ROUNDS = 25


def main(argv: list[str]) -> int:
    """Measure and print the JSON line."""
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
    """Return the launch latency of several operators in microseconds."""
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

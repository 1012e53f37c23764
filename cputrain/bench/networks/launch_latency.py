"""Measure the kernel launch latency of a device: host time to enqueue an operator.

    python -m cputrain.bench.networks.launch_latency --device ocl

prints one JSON line: microseconds to enqueue an elementwise operator on 1024 elements, and for a
training step of a network at batch size 1 the host time to enqueue all operators beside the whole
step time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from statistics import median

import torch

from cputrain.bench.networks.runs import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NUM_CALLS = 200
"""Operators enqueued between two synchronizations; few enough to fit a device's queue."""

NUM_ROUNDS = 25
"""Rounds of `NUM_CALLS` operators, whose median counts."""


def main(argv: list[str]) -> int:
    """Measure launch latencies and one network's host time, and print them as a JSON line."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.networks.launch_latency")
    parser.add_argument("--device", default="ocl", help="ocl, cuda, cpu, …")
    parser.add_argument("--network", default="resnet18", help="one of cputrain bench networks")
    parser.add_argument("--side", type=int, default=224, help="image height and width in pixels")
    args = parser.parse_args(argv)
    result = run([args.network], args.device, 1, args.side, 10)
    network_result = result["networks"][args.network]
    print(json.dumps({
        "device": args.device, "of": result["of"], "microseconds": launch_latencies(args.device),
        "network": args.network, "asked": median(network_result["asked"]),
        "step": median(network_result["seconds"]),
    }))  # fmt: skip
    return 0


def launch_latencies(device: str) -> dict[str, float]:
    """Return the host time to enqueue each of several operators, in microseconds by name."""
    x, y = (torch.randn(1024).to(device) for _ in range(2))
    synchronize: Any = getattr(getattr(torch, x.device.type), "synchronize", lambda: None)
    operators: dict[str, Callable[[], torch.Tensor]] = {
        "add": lambda: torch.add(x, y),
        "relu": lambda: torch.relu(x),
        "add_": lambda: x.add_(y, alpha=0.0),
    }

    def repeated(call: Callable[[], torch.Tensor]) -> None:
        for _ in range(NUM_CALLS):
            call()

    blocks: dict[str, Callable[[], None]] = {
        name: partial(repeated, call) for name, call in operators.items()
    }
    latencies_us = {}
    with torch.no_grad():
        if x.device.type == "ocl":
            from cputrain.opencl import Graph

            with Graph() as graph:
                repeated(operators["add_"])
            blocks["add_ in a graph"] = graph.replay
        for name, run_block in blocks.items():
            seconds_per_call = []
            for _ in range(NUM_ROUNDS):
                start_s = time.perf_counter()
                run_block()
                seconds_per_call.append((time.perf_counter() - start_s) / NUM_CALLS)
                synchronize()
            latencies_us[name] = round(median(seconds_per_call) * 1e6, 2)
    return latencies_us


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

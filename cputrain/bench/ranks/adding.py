"""One rank of the all-reduce benchmark: tensors of many sizes, in shared memory and by gloo."""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from statistics import median

import torch
from torch import distributed

from cputrain.ranks.node_group import connect_node_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KIB = (64, 256, 1024, 4096, 16384, 25600, 102400)
"""Tensor sizes in KiB; 25600 is the bucket size of DistributedDataParallel."""

MOVED = 40_000
"""KiB that each side reduces in a round, in at least three all-reduces."""


def main() -> None:
    """Time both all-reduces, interleaved; rank 0 prints milliseconds per call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    distributed.init_process_group("gloo")
    group = connect_node_group(distributed.group.WORLD, timeout_s=60.0)
    if group is None:
        raise SystemExit("these ranks share no memory")
    for kib in KIB:
        whole = torch.zeros(kib * 256)
        ways: dict[str, Callable[[], object]] = {
            "shared": partial(group.all_reduce, whole),
            "gloo": partial(distributed.all_reduce, whole),
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        times = max(3, min(40, MOVED // kib))
        for number in range(1 + rounds):  # the first round is a warm-up
            for name in ways if number % 2 else reversed(ways):
                distributed.barrier()
                begin = time.perf_counter()
                for _ in range(times):
                    ways[name]()
                took[name].append(1e3 * (time.perf_counter() - begin) / times)
        if distributed.get_rank() == 0:
            figures = {
                name: [round(of(values[1:]), 3) for of in (median, min, max)]
                for name, values in took.items()
            }
            print(json.dumps({"KiB": kib, **figures}), flush=True)
    distributed.barrier()
    group.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

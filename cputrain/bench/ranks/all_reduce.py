"""Script of a rank that times all-reduce over many tensor sizes, in shared memory and by gloo."""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from statistics import median

import torch
from torch import distributed

from cputrain.measure.rounds import interleaved
from cputrain.ranks.node_group import connect_node_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SIZES_KIB = (64, 256, 1024, 4096, 16384, 25600, 102400)
"""Tensor sizes in KiB; 25600 is the bucket size of DistributedDataParallel."""

KIB_PER_ROUND = 40_000
"""KiB that each side reduces in a round, in 3 to 40 all-reduces."""


def main() -> None:
    """Time both all-reduces, interleaved; rank 0 prints median, minimum and maximum in ms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    distributed.init_process_group("gloo")
    group_memory = connect_node_group(distributed.group.WORLD, timeout_s=60.0)
    if group_memory is None:
        raise SystemExit("The ranks cannot share memory: run all of them on one node.")
    for kib in SIZES_KIB:
        tensor = torch.zeros(kib * 256)
        all_reduces: dict[str, Callable[[], object]] = {
            "shared": partial(group_memory.all_reduce, tensor),
            "gloo": partial(distributed.all_reduce, tensor),
        }
        times_ms: dict[str, list[float]] = {name: [] for name in all_reduces}
        num_calls = max(3, min(40, KIB_PER_ROUND // kib))
        for _, name in interleaved(all_reduces, 1 + rounds):  # the first round is a warm-up
            distributed.barrier()
            start_s = time.perf_counter()
            for _ in range(num_calls):
                all_reduces[name]()
            times_ms[name].append(1e3 * (time.perf_counter() - start_s) / num_calls)
        if distributed.get_rank() == 0:
            summary = {
                name: [round(statistic(values[1:]), 3) for statistic in (median, min, max)]
                for name, values in times_ms.items()
            }
            print(json.dumps({"KiB": kib, **summary}), flush=True)
    distributed.barrier()
    group_memory.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""A rank: adds up tensors of many forms with the other ranks, and tells what it had at the end.

adds_up.py                    all of them
adds_up.py gone RANK          this one ends in the middle
adds_up.py late RANK          this one does not come
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

import torch
from torch import distributed

from cputrain.errors import RankGone
from cputrain.ranks.node_group import connect_node_group

SIZES = (1, 63, 64, 65, 1000, 4096, 100_003, 17, 300_000)
"""Some more than there is room for by then, some less."""


def tell(**what: object) -> None:
    """In one piece: others write as well."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    """As asked."""
    how, who = (*sys.argv[1:], "", "")[:2]
    distributed.init_process_group("gloo")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    group = connect_node_group(distributed.group.WORLD, timeout_s=3.0 if how == "late" else 60.0)
    assert group is not None
    drawn = torch.Generator().manual_seed(rank)
    had = hashlib.sha256()
    for number, size in enumerate(SIZES):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            made = (torch.randn(size, generator=drawn) * 9).to(dtype)
            every = [torch.empty_like(made) for _ in range(count)]
            distributed.all_gather(every, made)
            whole = sum(every[1:], start=every[0].clone())
            divisor = count if dtype.is_floating_point and size % 2 else 1
            if number == 4 and who == str(rank):
                time.sleep(0 if how == "gone" else 10)
                os._exit(9)
            begin = time.monotonic()
            try:
                group.all_reduce(made, divisor)
            except RankGone as error:
                tell(seconds=time.monotonic() - begin, error=str(error))
                os._exit(0)
            assert torch.equal(made, whole.div_(divisor) if divisor > 1 else whole)
            had.update(made.view(torch.uint8).numpy().tobytes())
    # one right after the other, with nothing between that has ranks wait
    for number in range(500):
        made = torch.full((40 + number % 3,), float(rank + number))
        group.all_reduce(made)
        wrong = made != sum(other + number for other in range(count))
        if wrong.any():
            raise AssertionError(f"exchange {number} of rank {rank}: {made}")
    tell(had=had.hexdigest())
    group.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""A small GPT on random text, under DistributedDataParallel; what torchrun starts as well."""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from cputrain.bench.workloads.gpt import GPT


def main() -> None:
    """Train, and print losses and step times of rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="the first third warms up")
    parser.add_argument("--batch", type=int, default=16, help="texts in a step, of all ranks")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--words", type=int, default=8000)
    options = parser.parse_args()

    distributed.init_process_group("gloo")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    whole = GPT(options.words, options.length, options.width, options.layers, heads=8)
    model = DistributedDataParallel(whole)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.randint(options.words, (options.batch, options.length + 1))[rank::ranks]

    losses, seconds = [], []
    for _ in range(options.steps):
        begin = time.perf_counter()
        made = model(text[:, :-1])
        loss = nn.functional.cross_entropy(made.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = loss.detach() / ranks
        distributed.all_reduce(mean)
        losses.append(mean.item())
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(json.dumps({
            "losses": losses[:20], "seconds_per_step": seconds[options.steps // 3 :],
            "samples_per_step": options.batch,
        }))  # fmt: skip
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

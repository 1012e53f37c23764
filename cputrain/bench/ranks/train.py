"""Train a small GPT on random tokens with DistributedDataParallel; one process for each rank."""

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
    """Train; rank 0 prints the losses and its step times as a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="steps; the first third is warm-up")
    parser.add_argument("--batch", type=int, default=16, help="global batch size")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--words", type=int, default=8000)
    options = parser.parse_args()

    distributed.init_process_group("gloo")
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    gpt = GPT(options.words, options.length, options.width, options.layers, heads=8)
    model = DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.randint(options.words, (options.batch, options.length + 1))[rank::num_ranks]

    losses, seconds = [], []
    for _ in range(options.steps):
        start_s = time.perf_counter()
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean_loss = loss.detach() / num_ranks
        distributed.all_reduce(mean_loss)
        losses.append(mean_loss.item())
        seconds.append(time.perf_counter() - start_s)
    if rank == 0:
        print(json.dumps({
            "losses": losses[:20], "seconds_per_step": seconds[options.steps // 3 :],
            "samples_per_step": options.batch,
        }))  # fmt: skip
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""A rank with a share of its own, in float64: its losses and weights, and the samples it had.

weighted.py WEIGHTS, of which there is one for each rank; "" for those that are measured
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from cputrain.split import rank_share

SAMPLES, BATCH, EPOCHS = 100, 24, 3


def main() -> None:
    """Train."""
    distributed.init_process_group("gloo")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    weights = [float(one) for one in sys.argv[1].split(",") if one] or None
    share = rank_share(lambda: time.sleep(0.01 * (1 + rank)), weights=weights)
    began = share.weights

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(SAMPLES, 8), torch.randint(3, (SAMPLES,)))
    sampler = share.sampler(data, BATCH, shuffle=True, seed=5)
    loader = DataLoader(data, batch_sampler=sampler)
    whole = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    model = DistributedDataParallel(whole)
    share.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    had = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for samples, classes in loader:
            had.append(len(samples))
            loss = functional.cross_entropy(model(samples), classes)
            if rank == 0 and not weights:
                time.sleep(0.03)  # this one is slow from now on
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not weights:
            share.measure()
    told = json.dumps({
        "rank": rank, "ranks": count, "had": had, "began": began, "ended": share.weights,
        "weights": [one.flatten().tolist() for one in whole.parameters()],
    })  # fmt: skip
    sys.stdout.write(f"{told}\n")  # in one piece: others write as well
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

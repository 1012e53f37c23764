"""Fit a network from several seeds and learning rates, several of them in one process.

cputrain many --grid lr=1e-3,3e-3,1e-2 --grid seed=0..7 examples/seeds.py
"""

import argparse
import json

import torch

from cputrain import Stack
from cputrain.many import stackable

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=2000)


def network(seed):
    """Return a network with the weights of a seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
        torch.nn.Linear(64, 1),
    )  # fmt: skip


def main():
    """Fit the sine of a number from each seed; print a result for each."""
    jobs = stackable(parser.parse_args, "lr", "seed")
    models = [network(job.seed) for job in jobs]
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=job.lr)
        for model, job in zip(models, jobs, strict=True)
    ]
    stack = Stack(models, torch.nn.functional.mse_loss, optimizers)
    torch.manual_seed(0)
    for _ in range(jobs[0].steps):
        x = 6 * torch.rand(64, 1) - 3
        losses = stack(x, x.sin())
    for loss in losses.tolist():
        print(json.dumps({"loss": loss}))


if __name__ == "__main__":
    main()

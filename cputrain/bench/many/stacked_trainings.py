"""The trainings as a script that says which of its jobs may share a process, by `Stack`.

python stacked_trainings.py --network mlp --seed 3 --steps 1000
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader

from cputrain import Stack
from cputrain.bench.many.trainings import NETWORKS, Rollout, policy, policy_loss
from cputrain.many import stackable


def train_policies(seeds: list[int], steps: int) -> list[float]:
    """Train a policy for each seed; return their losses of the last step."""
    policies, rollouts = [], []
    for seed in seeds:
        torch.manual_seed(seed)
        policies.append(policy())
        rollouts.append(Rollout())
    optimizers = [torch.optim.Adam(each.parameters(), lr=3e-4) for each in policies]
    stack = Stack(policies, policy_loss, optimizers, has_own_batches=True, max_grad_norm=0.5)
    columns = [
        torch.stack(column) for column in zip(*(each.columns for each in rollouts), strict=True)
    ]
    losses = torch.empty(0)
    for step in range(steps):
        states, *targets = (column[:, Rollout.rows(step)] for column in columns)
        losses = stack(states, *targets)
    return losses.tolist()


def train(network: str, seeds: list[int], steps: int) -> list[float]:
    """Train a network for each seed; return their losses of the last step."""
    models, loaders = [], []
    for seed in seeds:
        torch.manual_seed(seed)
        model, dataset = NETWORKS[network]()
        generator = torch.Generator().manual_seed(seed)
        models.append(model)
        loaders.append(DataLoader(dataset, batch_size=128, shuffle=True, generator=generator))
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in models]
    stack = Stack(models, F.cross_entropy, optimizers, has_own_batches=True)
    losses: Tensor
    while True:
        for batches in zip(*loaders, strict=True):
            inputs, targets = (torch.stack(each) for each in zip(*batches, strict=True))
            losses = stack(inputs, targets)
            steps -= 1
            if not steps:
                return losses.tolist()


def main() -> None:
    """Train once for each job of this process, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("ppo", *NETWORKS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    jobs = stackable(parser.parse_args, "seed")
    seeds, steps = [job.seed for job in jobs], jobs[0].steps
    if jobs[0].network == "ppo":
        losses = train_policies(seeds, steps)
    else:
        losses = train(jobs[0].network, seeds, steps)
    for loss in losses:
        print(json.dumps({"loss": loss}))


if __name__ == "__main__":
    main()

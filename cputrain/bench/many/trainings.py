"""Small trainings as users write them: a script with a seed, and a function that it calls.

python trainings.py --network mlp --seed 3 --steps 1000
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset


def train(network: str, seed: int, steps: int) -> float:
    """Train a network from a seed; return the loss of its last step."""
    torch.manual_seed(seed)
    if network == "ppo":
        return train_policy(steps)
    model, dataset = NETWORKS[network]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(dataset, batch_size=128, shuffle=True, generator=generator)
    while True:
        for x, targets in loader:
            loss = F.cross_entropy(model(x), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps -= 1
            if not steps:
                return loss.item()


def policy() -> nn.Module:
    """Return a policy of reinforcement learning."""
    return nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    )


class Rollout:
    """Random transitions of which a policy learns."""

    def __init__(self) -> None:
        states, actions = torch.randn(2048, 8), torch.randint(0, 4, (2048,))
        advantages, before = torch.randn(2048), torch.full((2048,), -1.386)
        self.columns = (states, actions, advantages, before)

    @staticmethod
    def rows(step: int) -> slice:
        """Return the rows of a step's batch."""
        return slice(step % 32 * 64, step % 32 * 64 + 64)


def policy_loss(
    outputs: torch.Tensor, actions: torch.Tensor, gain: torch.Tensor, before: torch.Tensor
) -> torch.Tensor:
    """Return the clipped objective of a policy."""
    chosen = outputs.log_softmax(1).gather(1, actions[:, None])[:, 0]
    ratio = (chosen - before).exp()
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()


def train_policy(steps: int) -> float:
    """Take steps of a policy with a clipped objective, on batches of random transitions."""
    network = policy()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
    rollout = Rollout()
    for step in range(steps):
        states, *targets = (column[rollout.rows(step)] for column in rollout.columns)
        loss = policy_loss(network(states), *targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
    return loss.item()


def mlp() -> tuple[nn.Module, TensorDataset]:
    """Return a network of three layers, and rows in memory."""
    model = nn.Sequential(
        nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return model, _data(50_000, 512)


def cnn() -> tuple[nn.Module, TensorDataset]:
    """Return a small convolutional network, and images."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), model), _data(10_000, 784)


class TableBlock(nn.Module):
    """Residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(128), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.layers(x)
        return x + branch


class Table(nn.Module):
    """Network for tables: embeddings of categories, and residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 8)
        self.layers = nn.Sequential(
            nn.Linear(20 + 8 * 8, 128), TableBlock(), TableBlock(), nn.Linear(128, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        categories = self.embed(x[:, 20:].abs().mul(300).long().clamp(max=999)).flatten(1)
        outputs: torch.Tensor = self.layers(torch.cat([x[:, :20], categories], 1))
        return outputs


def tabular() -> tuple[nn.Module, TensorDataset]:
    """Return a network for tables with embeddings and residual blocks, and rows."""
    return Table(), _data(50_000, 28)


def data() -> tuple[nn.Module, TensorDataset]:
    """Return a network of two layers, and 400 MB of data that are the same for every seed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, 1024, generator=generator)
    targets = torch.randint(0, 10, (100_000,), generator=generator)
    model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, TensorDataset(x, targets)


def _data(num_rows: int, num_columns: int) -> TensorDataset:
    x = torch.randn(num_rows, num_columns)
    return TensorDataset(x, (x[:, :10] + torch.randn(num_rows, 10)).argmax(1))


NETWORKS = {"mlp": mlp, "cnn": cnn, "tabular": tabular, "data": data}
"""Functions that return a model and its data set; "ppo" has none."""


def main() -> None:
    """Train once, and print the loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("ppo", *NETWORKS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    loss = train(arguments.network, arguments.seed, arguments.steps)
    print(json.dumps({"loss": loss}))


if __name__ == "__main__":
    main()

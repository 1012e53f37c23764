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
    return float(NETWORKS[network](steps))


def ppo(steps: int) -> float:
    """Take steps of a policy with a clipped objective, on batches of random transitions."""
    policy = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    states, actions = torch.randn(2048, 8), torch.randint(0, 4, (2048,))
    advantages, before = torch.randn(2048), torch.full((2048,), -1.386)
    for step in range(steps):
        rows = slice(step % 32 * 64, step % 32 * 64 + 64)
        chosen = policy(states[rows]).log_softmax(1).gather(1, actions[rows, None])[:, 0]
        ratio = (chosen - before[rows]).exp()
        gain = advantages[rows]
        loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    return float(loss)


def mlp(steps: int) -> float:
    """Train on rows of a data set in memory, behind a DataLoader."""
    model = nn.Sequential(
        nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    return _fit(model, _data(50_000, 512), steps)


def cnn(steps: int) -> float:
    """Train a small convolutional network on images."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    return _fit(nn.Sequential(nn.Unflatten(1, (1, 28, 28)), model), _data(10_000, 784), steps)


def tabular(steps: int) -> float:
    """Train a network for tables: embeddings of categories, and residual blocks."""

    class TableBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.LayerNorm(128), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            branch: torch.Tensor = self.layers(x)
            return x + branch

    class Table(nn.Module):
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

    return _fit(Table(), _data(50_000, 28), steps)


def data(steps: int) -> float:
    """Train on 400 MB of data that are the same for every seed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, 1024, generator=generator)
    targets = torch.randint(0, 10, (100_000,), generator=generator)
    model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))
    return _fit(model, TensorDataset(x, targets), steps)


def _data(num_rows: int, num_columns: int) -> TensorDataset:
    x = torch.randn(num_rows, num_columns)
    return TensorDataset(x, (x[:, :10] + torch.randn(num_rows, 10)).argmax(1))


def _fit(model: nn.Module, dataset: TensorDataset, steps: int) -> float:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=128, shuffle=True)
    while True:
        for x, targets in loader:
            loss = F.cross_entropy(model(x), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps -= 1
            if not steps:
                return float(loss)


NETWORKS = {"ppo": ppo, "mlp": mlp, "cnn": cnn, "tabular": tabular, "data": data}


def main() -> None:
    """Train once, and print the loss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    loss = train(arguments.network, arguments.seed, arguments.steps)
    print(json.dumps({"loss": loss}))


if __name__ == "__main__":
    main()

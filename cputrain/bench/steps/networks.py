"""The networks, their losses, optimizers and batches."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn, optim

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Network(NamedTuple):
    """A network to train."""

    make: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    optimizer: type[optim.Adam]
    batch: Callable[[], tuple[Any, Tensor]]


class _Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(8, 64, batch_first=True), nn.Linear(64, 1)

    def forward(self, series: Tensor) -> Tensor:
        hidden, _ = self.cells(series)
        forecast: Tensor = self.head(hidden[:, -1])
        return forecast


class _GraphNetwork(nn.Module):
    """Messages between neighbours, by a normalized adjacency matrix."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*shape) for shape in pairwise(sizes))

    def forward(self, adjacency: Tensor, nodes: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = torch.relu(nodes) if layer is not self.layers[0] else nodes
            nodes = adjacency @ layer(nodes)
        return nodes


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(width), nn.Dropout(0.1)
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.dropout(torch.relu(self.first(self.norm(rows))))
        output: Tensor = rows + self.second(hidden)
        return output


def _mlp(activation: type[nn.Module], *sizes: int) -> nn.Module:
    layers = [layer for shape in pairwise(sizes) for layer in (nn.Linear(*shape), activation())]
    return nn.Sequential(*layers[:-1])


def _tabular_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 128), *(_ResidualBlock(128) for _ in range(4)), nn.Linear(128, 2)
    )


def _graph() -> tuple[Any, Tensor]:
    adjacency = (torch.rand(64, 64) < 0.1).float() + torch.eye(64)
    return (adjacency / adjacency.sum(1, keepdim=True), torch.randn(64, 16)), torch.randint(
        4, (64,)
    )


NETWORKS = {
    "ppo": Network(
        lambda: _mlp(nn.Tanh, 8, 64, 64, 4), nn.MSELoss(), optim.Adam,
        lambda: (torch.randn(64, 8), torch.randn(64, 4)),
    ),
    "sac": Network(
        lambda: _mlp(nn.ReLU, 32, 256, 256, 8), nn.MSELoss(), optim.Adam,
        lambda: (torch.randn(256, 32), torch.randn(256, 8)),
    ),
    "mlp": Network(
        lambda: _mlp(nn.ReLU, 512, 128, 128, 2), nn.CrossEntropyLoss(), optim.Adam,
        lambda: (torch.randn(64, 512), torch.randint(2, (64,))),
    ),
    "gru": Network(
        _Forecaster, nn.MSELoss(), optim.Adam, lambda: (torch.randn(32, 16, 8), torch.randn(32, 1))
    ),
    "gnn": Network(
        lambda: _GraphNetwork(16, 32, 32, 4), nn.CrossEntropyLoss(), optim.Adam, _graph
    ),
    "tabular": Network(
        _tabular_resnet, nn.CrossEntropyLoss(), optim.AdamW,
        lambda: (torch.randn(256, 32), torch.randint(2, (256,))),
    ),
}  # fmt: skip
"""The networks of the cases that train one."""

NETWORKS["population"], NETWORKS["ensemble"] = NETWORKS["ppo"], NETWORKS["mlp"]

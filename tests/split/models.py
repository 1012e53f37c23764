"""Models of every kind that a batch is divided for, small."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.body(x))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        top = self.down(x)
        return self.out(torch.cat([top, self.up(self.deep(top))], 1))


class Words(nn.Module):
    """An embedding, and its weight once more at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.cells = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids):
        found, (last, _) = self.cells(self.embedding(ids))
        return self.out(found), last


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 16)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.drop(torch.relu(self.inside(x)))
        return self.out(hidden + 0.1 * torch.randn_like(hidden))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.BatchNorm1d(16), nn.Linear(16, 3))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), Residual(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 3),
    )  # fmt: skip


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(encoder, nn.Flatten(), nn.LayerNorm(40), nn.Linear(40, 3))


def sequences_first() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16)


def images(count: int, channels: int) -> torch.Tensor:
    return torch.randn(count, channels, 8, 8)


MODELS = {
    "mlp": (mlp, lambda count: torch.randn(count, 6)),
    "resnet": (resnet, lambda count: images(count, 3)),
    "transformer": (transformer, lambda count: torch.randn(count, 5, 8)),
    "sequences first": (sequences_first, lambda count: torch.randn(5, count, 8)),
    "words": (Words, lambda count: torch.randint(11, (count, 7))),
    "unet": (UNet, lambda count: images(count, 2)),
    "noisy": (Noisy, lambda count: torch.randn(count, 6)),
}
"""What makes each, and a batch for it."""

"""Train small networks, and print the stamp of each: a script of the tests."""

import json
import sys

import torch
from torch import nn

from cputrain.reproduce.stamp import stamp_of_models

BATCH = 37


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 10)

    def forward(self, data):
        words = data.flatten(1)[:, :12].abs().mul(7).long().clamp(max=49)
        return self.head(self.lstm(self.words(words))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.enter = nn.Linear(16, 32)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, data):
        return self.head(self.layers(self.enter(data.flatten(1).view(-1, 48, 16))).mean(1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(768, 40), nn.Linear(20, 10)

    def forward(self, data):
        mean, spread = self.encode(data.flatten(1)).chunk(2, -1)
        return self.decode(mean + torch.randn_like(mean) * spread.exp())


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, data):
        first = self.first(data)
        return self.head(torch.cat([first, self.up(self.down(first))], 1)).mean((2, 3))


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(200, 8, mode="sum") for _ in range(3))
        self.top = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, data):
        rows = data.flatten(1)[:, :12].abs().mul(50).long().clamp(max=199)
        pooled = [table(rows[:, 4 * i : 4 * i + 4]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat(pooled, 1))


def residual():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(16)

        def forward(self, data):
            return nn.functional.relu(data + self.norm(self.conv(data)))

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), Block(), Block(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def depthwise():
    return nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.Hardswish(),
        nn.Conv2d(16, 16, 5, padding=2, groups=16), nn.BatchNorm2d(16), nn.ReLU6(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 300), nn.ReLU(), nn.Dropout(0.2), nn.Linear(300, 10)
    )


def vocabulary():
    """Has logits and weights enough for kernels that run on all cores."""
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.Tanh(), nn.Linear(16, 15_000))


NETWORKS = {
    "perceptron": perceptron, "residual": residual, "depthwise": depthwise,
    "recurrent": Recurrent, "transformer": Transformer, "autoencoder": Autoencoder,
    "unet": Unet, "tables": Tables, "vocabulary": vocabulary,
}  # fmt: skip


def train(make, steps):
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        data, labels = torch.randn(BATCH, 3, 16, 16), torch.randint(10, (BATCH,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return stamp_of_models([model])


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    names = sys.argv[3:] or NETWORKS
    print(json.dumps({name: train(NETWORKS[name], int(sys.argv[1])) for name in names}))

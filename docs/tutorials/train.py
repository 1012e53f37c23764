"""Train a small ResNet on pictures of stripes: which of eight directions do they have?"""

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DIRECTIONS = 8


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(out)) + self.shortcut(x)).relu()


def resnet(width: int = 16) -> nn.Module:
    widths = [width, width, 2 * width, 4 * width]
    blocks = [
        Block(inputs, outputs, stride)
        for inputs, outputs, stride in zip(widths, widths[1:], (1, 2, 2), strict=False)
    ]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, DIRECTIONS),
    )  # fmt: skip


def stripes(count: int) -> TensorDataset:
    labels = torch.randint(DIRECTIONS, (count,))
    angles = labels * math.pi / DIRECTIONS
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    waves = angles.cos()[:, None, None] * x + angles.sin()[:, None, None] * y
    images = (waves / 2 + torch.rand(count, 1, 1) * 6).sin()[:, None].expand(-1, 3, -1, -1)
    return TensorDataset(images + torch.randn(count, 3, 64, 64), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(stripes(640), arguments.batch, shuffle=True, num_workers=2)
    model = resnet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - begin
        print(
            f"epoch {epoch}: loss {loss.item():.4f}, {len(loader) / seconds:.1f} batches a second"
        )


if __name__ == "__main__":
    main()

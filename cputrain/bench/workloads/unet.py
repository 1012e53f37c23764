"""A U-Net on random images, Adam: convolutions at full resolution, and large activations."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional


def double_conv(in_channels: int, out_channels: int) -> nn.Sequential:
    """Build two 3x3 convolutions, each with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """U-Net with skip connections: a contracting path and an expanding path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        level_channels = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            double_conv(in_channels, out_channels)
            for in_channels, out_channels in zip([3, *level_channels], level_channels, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
            for channels in level_channels[-2::-1]
        )
        self.merge = nn.ModuleList(
            double_conv(2 * channels, channels) for channels in level_channels[-2::-1]
        )
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for level, layer in enumerate(self.down):
            x = layer(x if level == 0 else functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        out: torch.Tensor = self.out(x)
        return out


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=4, help="batch size (default: 4)")
    parser.add_argument(
        "--image", type=int, default=128, help="image height and width in pixels (default: 128)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    model = UNet(width=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    images = torch.randn(options.batch, 3, options.image, options.image)
    masks = torch.randint(2, (options.batch, 1, options.image, options.image)).float()

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_fn(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[1:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

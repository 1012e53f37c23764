"""ConvNeXt on random images, AdamW: large depthwise kernels between layers of matmuls."""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn import functional

DEPTHS = (3, 3, 9, 3)
WIDTHS = (96, 192, 384, 768)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalized = functional.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return normalized.permute(0, 3, 1, 2)


class Block(nn.Module):
    """Depthwise convolution and MLP, scaled by channel, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.depthwise(x).permute(0, 2, 3, 1)
        inner = self.scale * self.mlp(self.norm(inner))
        out: torch.Tensor = x + inner.permute(0, 3, 1, 2)
        return out


def convnext_tiny(classes: int = 1000) -> nn.Sequential:
    """Build ConvNeXt-tiny (Liu et al., 2022), without stochastic depth."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTHS[0], 4, stride=4), ChannelNorm(WIDTHS[0])]
    for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
        if stage:
            layers += [
                ChannelNorm(WIDTHS[stage - 1]),
                nn.Conv2d(WIDTHS[stage - 1], width, 2, stride=2),
            ]
        layers += [Block(width) for _ in range(depth)]
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(WIDTHS[-1]),
        nn.Linear(WIDTHS[-1], classes),
    )


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (default: 16)")
    parser.add_argument(
        "--image", type=int, default=128, help="image height and width in pixels (default: 128)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    model = convnext_tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    images = torch.randn(options.batch, 3, options.image, options.image)
    labels = torch.randint(1000, (options.batch,))

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_fn(model(images), labels)
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

"""A small vision transformer on random images, AdamW and dropout: matmuls and attention."""

import argparse
import json
import time

import torch
from torch import nn


class VisionTransformer(nn.Module):
    """Patches of an image as tokens of a transformer encoder, with a token for the class."""

    def __init__(self, image: int, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        encoded = self.encoder(tokens + self.positions)
        out: torch.Tensor = self.out(self.norm(encoded[:, 0]))
        return out


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="timed steps (default: 6)")
    parser.add_argument("--batch", type=int, default=16, help="batch size (default: 16)")
    parser.add_argument(
        "--image", type=int, default=128, help="image height and width in pixels (default: 128)"
    )
    parser.add_argument("--patch", type=int, default=16, help="pixels of a patch (default: 16)")
    parser.add_argument("--width", type=int, default=384, help="embedding size (default: 384)")
    parser.add_argument("--layers", type=int, default=12, help="encoder layers (default: 12)")
    parser.add_argument("--heads", type=int, default=6, help="attention heads (default: 6)")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = VisionTransformer(
        options.image, options.patch, options.width, options.layers, options.heads
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
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

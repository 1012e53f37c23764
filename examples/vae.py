"""A small convolutional VAE: it learns to draw glyphs by squeezing them through eight numbers.

The glyphs are rings, crosses and bars of random size and place, drawn by code.

    python examples/vae.py
"""

import argparse
import time

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits

SIDE = 32
CODE = 8


def draw_glyphs(count: int) -> torch.Tensor:
    """Images (count, 1, SIDE, SIDE) of a ring, a cross or a bar; numbers from 0 to 1."""
    places = torch.arange(SIDE, dtype=torch.float32)
    x = (places - torch.empty(count, 1, 1).uniform_(13, 19)).expand(count, SIDE, SIDE)
    y = (places[:, None] - torch.empty(count, 1, 1).uniform_(13, 19)).expand(count, SIDE, SIDE)
    size = torch.empty(count, 1, 1).uniform_(5, 10)
    ring = ((x**2 + y**2).sqrt() - size).abs()
    bar = torch.maximum(y.abs(), x.abs() - size)
    cross = torch.minimum(bar, torch.maximum(x.abs(), y.abs() - size))
    distances = torch.stack([ring, cross, bar])
    kinds = torch.randint(3, (count,))
    return (2.5 - distances[kinds, torch.arange(count)]).clamp(0, 1)[:, None]


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 2 * CODE),
        )
        self.decoder = nn.Sequential(
            nn.Linear(CODE, 32 * 8 * 8),
            nn.ReLU(),
            nn.Unflatten(1, (32, 8, 8)),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The loss: how unlike the copies are, and how far the codes stray from a normal one."""
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        copies = self.decoder(code)
        unlike = binary_cross_entropy_with_logits(copies, images, reduction="sum")
        stray = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return (unlike + stray) / len(images)


def as_text(images: torch.Tensor) -> str:
    """Images side by side, two rows of pixels in a line of text."""
    wide = torch.cat(list(avg_pool2d(images, (2, 1))[:, 0]), dim=1)
    return "\n".join(
        "".join(" .:-=+*#%@"[int(9.99 * pixel)] for pixel in row) for row in wide.tolist()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=260, help="how long to learn (default: 260)")
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    glyphs = draw_glyphs(4_096)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    begin = time.perf_counter()
    for step in range(1, steps + 1):
        loss = model(glyphs[torch.randint(len(glyphs), (128,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps:
            print(f"step {step:4d}  loss {loss.item():.6f}")
    speed = step / (time.perf_counter() - begin)

    with torch.no_grad():
        drawn = torch.sigmoid(model.decoder(torch.randn(3, CODE)))
    print(f"{speed:.2f} steps/s; the model draws, from three random codes:\n")
    print(as_text(drawn))


if __name__ == "__main__":
    main()

"""The everyday shape: a small network, a DataLoader with two workers, and Adam.

It learns to read digits of 8 x 8 pixels, drawn by code: shifted, dimmed and noisy.

    python examples/mlp_dataloader.py
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DIGITS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def draw_digits(count: int) -> TensorDataset:
    """Rows of 64 pixels, and which digit each one shows."""
    glyphs = torch.tensor(
        [[[int(bit) for bit in row] for row in digit.split()] for digit in DIGITS],
        dtype=torch.float32,
    )
    labels = torch.randint(10, (count,))
    images = torch.zeros(count, 8, 8)
    down, right = torch.randint(2, (count,)), torch.randint(4, (count,))
    for top in range(2):
        for left in range(4):
            here = (down == top) & (right == left)
            images[here, top : top + 7, left : left + 5] = glyphs[labels[here]]
    images *= 0.4 + 0.6 * torch.rand(count, 1, 1)
    images += 0.35 * torch.randn(count, 8, 8)
    return TensorDataset(images.flatten(1), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=900, help="how long to learn (default: 900)")
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    loader = DataLoader(draw_digits(20_000), batch_size=64, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_of = nn.CrossEntropyLoss()

    begin = time.perf_counter()
    step = 0
    while step < steps:
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0 or step == steps:
                print(f"step {step:4d}  loss {loss.item():.6f}")
            if step == steps:
                break
    speed = step / (time.perf_counter() - begin)

    images, labels = draw_digits(2_000).tensors
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    print(f"{right:.1%} of unseen digits read correctly, {speed:.0f} steps/s")


if __name__ == "__main__":
    main()

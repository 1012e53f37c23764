"""A small convolutional network learns to read handwritten digits, and is tested on others.

The 1,797 digits come with scikit-learn. With --seeds 5 it is done five times, from other weights
and in another order, which tells how much of a difference in accuracy is chance.

    python examples/digits.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

TESTED = 360


def split_digits() -> tuple[TensorDataset, TensorDataset]:
    """Those to learn from and those to be tested on; which is which does not change."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learned, tested = order[TESTED:], order[:TESTED]
    return (
        TensorDataset(images[learned], labels[learned]),
        TensorDataset(images[tested], labels[tested]),
    )


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(seed: int, epochs: int, steps: int) -> float:
    """Train a network to the end: the part of the test digits that it reads right."""
    torch.manual_seed(seed)
    learned, tested = split_digits()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = DataLoader(learned, batch_size=64, shuffle=True)
    steps_in_all = epochs * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps_in_all)
    taken = 0
    for epoch in range(epochs):
        total = 0.0
        for images, labels in batches:
            if taken == steps:
                break
            taken += 1
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"seed {seed}, epoch {epoch + 1}: loss {total / len(batches):.4f}")
    model.eval()
    with torch.no_grad():
        right = sum(
            (model(images).argmax(1) == labels).sum().item()
            for images, labels in DataLoader(tested, batch_size=120)
        )
    return right / TESTED


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seeds", type=int, default=1)
parser.add_argument("--steps", type=int, default=-1, help="stop after so many")
options = parser.parse_args()

for seed in range(options.seeds):
    accuracy = train(seed, options.epochs, options.steps)
    print(f"seed {seed}: test accuracy {accuracy:.4f}")

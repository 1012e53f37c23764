"""A small MLP, Adam, and a DataLoader with two workers: loading takes longer than training."""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs (default: 3)")
    parser.add_argument("--steps", type=int, help="steps in an epoch (default: all of them)")
    parser.add_argument(
        "--samples", type=int, default=20_000, help="samples in the dataset (default: 20000)"
    )
    parser.add_argument("--batch", type=int, default=64, help="batch size (default: 64)")
    parser.add_argument("--workers", type=int, default=2, help="loader workers (default: 2)")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(options.samples, 512), torch.randint(2, (options.samples,)))
    loader = DataLoader(
        data,
        batch_size=options.batch,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        generator=torch.Generator().manual_seed(1),
    )
    model = nn.Sequential(
        nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    losses: list[float] = []
    seconds = []
    for _ in range(1 + options.epochs):  # the first epoch is a warm-up
        begin = time.perf_counter()
        num_losses_before = len(losses)
        for step, (rows, labels) in enumerate(loader, start=1):
            loss = loss_fn(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step == options.steps:
                break
        # epoch time divided by its steps, so that loading is included
        seconds.append((time.perf_counter() - begin) / max(1, len(losses) - num_losses_before))

    result = {
        "losses": losses[:20],
        "seconds_per_step": seconds[1:],
        "samples_per_step": options.batch,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

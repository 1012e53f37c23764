"""DLRM, a recommendation model, Adagrad: large embedding tables with sparse access."""

import argparse
import json
import time
from itertools import pairwise

import torch
from torch import nn


def mlp(*sizes: int) -> nn.Sequential:
    """Build linear layers of the given sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for in_features, out_features in pairwise(sizes):
        layers += [nn.Linear(in_features, out_features), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """DLRM: dense and sparse features to a click logit, through pairwise dot products."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        bags = [nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)]
        for bag in bags:
            nn.init.uniform_(bag.weight, -(rows**-0.5), rows**-0.5)
        self.tables = nn.ModuleList(bags)
        self.numbers = mlp(13, 256, width)
        self.top_mlp = mlp(width + (tables + 1) * tables // 2, 256, 128, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.numbers(numbers)
        features = [
            dense,
            *(table(ids) for table, ids in zip(self.tables, categories, strict=True)),
        ]
        stacked = torch.stack(features, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        rows, columns = torch.tril_indices(len(features), len(features), offset=-1)
        out: torch.Tensor = self.top_mlp(
            torch.cat([dense, products[:, rows, columns]], dim=1)
        ).squeeze(1)
        return out


def main() -> None:
    """Train, then print losses and step times as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument("--batch", type=int, default=512, help="batch size (default: 512)")
    parser.add_argument(
        "--rows", type=int, default=50_000, help="rows of each table (default: 50000)"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    tables = 8
    model = Recommender(tables, options.rows, width=32)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loss_fn = nn.BCEWithLogitsLoss()
    numbers = torch.randn(options.batch, 13)
    categories = torch.randint(options.rows, (tables, options.batch, 4))
    clicked = torch.randint(2, (options.batch,)).float()

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_fn(model(numbers, categories), clicked)
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

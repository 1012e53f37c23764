"""Recommendations after DLRM, Adagrad: large tables of which a step touches a few rows."""

import argparse
import json
import time
from itertools import pairwise

import torch
from torch import nn


def network(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """DLRM: dense and sparse features to a click logit, through pairwise dot products."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        bags = [nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)]
        for bag in bags:
            nn.init.uniform_(bag.weight, -(rows**-0.5), rows**-0.5)
        self.tables = nn.ModuleList(bags)
        self.numbers = network(13, 256, width)
        self.top = network(width + (tables + 1) * tables // 2, 256, 128, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        below = self.numbers(numbers)
        parts = [below, *(table(ids) for table, ids in zip(self.tables, categories, strict=True))]
        stacked = torch.stack(parts, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        one, other = torch.tril_indices(len(parts), len(parts), offset=-1)
        out: torch.Tensor = self.top(torch.cat([below, products[:, one, other]], dim=1)).squeeze(1)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument("--batch", type=int, default=512, help="rows in a step (default: 512)")
    parser.add_argument("--rows", type=int, default=50_000, help="of each table (default: 50000)")
    options = parser.parse_args()

    torch.manual_seed(0)
    tables = 8
    model = Recommender(tables, options.rows, width=32)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loss_of = nn.BCEWithLogitsLoss()
    numbers = torch.randn(options.batch, 13)
    categories = torch.randint(options.rows, (tables, options.batch, 4))
    clicked = torch.randint(2, (options.batch,)).float()

    losses = []
    seconds = []
    for _ in range(1 + options.steps):  # the first step is a warm-up
        begin = time.perf_counter()
        loss = loss_of(model(numbers, categories), clicked)
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

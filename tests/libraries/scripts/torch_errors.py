"""Errors and warnings of a script's own code: within models, backwards and data loaders."""

import gc
import random
import traceback
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("in its backward")


class Warns(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)

    def forward(self, x):
        warnings.warn("two frames up", stacklevel=3)
        warnings.warn("further up", stacklevel=4)
        return self.body(x)


def tell():
    traceback.print_exc()


def step(model, x, function=None):
    out = model(x)
    (out if function is None else function(out)).sum().backward()


def train(model):
    step(model, torch.randn(4, 8))
    torch.optim.SGD(model.parameters(), lr=0.1).step()


warnings.simplefilter("always")
torch.manual_seed(0)
model = Warns()
for _ in range(3):
    train(model)
conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
for call in (
    lambda: step(model, torch.randn(4, 8), Fails.apply),
    lambda: model(torch.randn(4, 9)),
    lambda: conv(torch.randn(2, 3, 8, 8)).view(5, -1),
    lambda: conv(torch.randn(2, 4, 8, 8)),
    lambda: torch.randn(3, requires_grad=True).backward(),
):
    try:
        call()
    except (RuntimeError, ValueError):
        tell()


class Rows(Dataset):
    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.fails_at:
            raise KeyError("row", index)
        return {"x": torch.randn(3), "r": random.random(), "n": np.random.rand(), "s": str(index)}


class Ragged(Rows):
    def __getitem__(self, index):
        return torch.zeros(index + 1)


class Alternating(Sampler):
    def __iter__(self):
        rows = list(range(12))
        random.shuffle(rows)
        yield from rows

    def __len__(self):
        return 12


def seed(worker):
    random.seed(torch.initial_seed() + worker)
    np.random.seed((torch.initial_seed() + worker) % 2**32)


def refuse(samples):
    raise RuntimeError("cannot be collated")


random.seed(0)
np.random.seed(0)
generator = torch.Generator().manual_seed(3)
for loader in (
    DataLoader(Rows(), 5, shuffle=True),
    DataLoader(Rows(), 4, sampler=Alternating(), num_workers=2, worker_init_fn=seed),
    DataLoader(Rows(), 4, shuffle=True, generator=generator, num_workers=1, worker_init_fn=seed),
    DataLoader(TensorDataset(torch.arange(12.0)), 5, shuffle=True, drop_last=True),
):
    for _ in range(2):
        for batch in loader:
            for value in batch.values() if isinstance(batch, dict) else batch:
                if isinstance(value, torch.Tensor):
                    print(value.dtype, value.stride(), value.tolist())
                else:
                    print(value)
    print(torch.rand(1).item(), random.random(), np.random.rand())
for workers in (0, 1):
    for loader in (
        DataLoader(Rows(fails_at=5), 4, num_workers=workers),
        DataLoader(Ragged(), 4, num_workers=workers),
        DataLoader(Rows(), 4, num_workers=workers, collate_fn=refuse),
    ):
        try:
            for _ in loader:
                pass
        except (KeyError, RuntimeError):
            tell()
        gc.collect()  # workers that are forked later would find this loader, and complain of it
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    iterator = iter(DataLoader(Rows(), 6, num_workers=17))
    next(iterator)
    del iterator
print([(entry.category.__name__, str(entry.message)[:60]) for entry in caught])

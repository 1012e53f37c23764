"""Prints batches: their containers, types, dtypes, shapes, strides, values, and random states."""

import hashlib
import random

import numpy as np
import torch


def described(batch):
    """Return a batch as text that tells all there is to see of it."""
    if isinstance(batch, torch.Tensor):
        values = batch.detach().clone(memory_format=torch.contiguous_format).view(-1)
        digest = hashlib.sha256(values.view(torch.uint8).numpy().tobytes()).hexdigest()[:10]
        return (
            f"{type(batch).__name__} {batch.dtype} {tuple(batch.shape)} {batch.stride()} "
            f"{batch.requires_grad} {batch.is_pinned()} {digest}"
        )
    if isinstance(batch, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(batch).tobytes()).hexdigest()[:10]
        return f"array {batch.dtype} {batch.shape} {batch.strides} {batch.flags.writeable} {digest}"
    if isinstance(batch, dict) or hasattr(batch, "items"):
        inner = ", ".join(f"{key!r}: {described(part)}" for key, part in batch.items())
        return f"{type(batch).__name__} {{{inner}}}"
    if isinstance(batch, list | tuple):
        return f"{type(batch).__name__} [{', '.join(map(described, batch))}]"
    return f"{type(batch).__name__} {batch!r}"


def seed(number):
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def states():
    """Return a digest of the random states of Python, NumPy and torch."""
    found = [random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:10]


def show(name, loader, *, epochs=2, most=4):
    """Print the batches of some epochs; how many there are, and what is seen after them."""
    for epoch in range(epochs):
        count = 0
        for batch in loader:
            if count < most:
                print(name, epoch, count, described(batch))
            count += 1
        print(name, epoch, "batches", count, "states", states())

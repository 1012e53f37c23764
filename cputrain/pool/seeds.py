"""Reproducible random seeds, distinct for each worker and each chunk of rows."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def seed_from(*numbers: int) -> int:
    """Return a 63-bit seed hashed from the numbers: all its bits depend on each number."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed torch, random and NumPy.

    Forked workers would otherwise all draw the numbers that the parent process draws next.
    """
    random.seed(seed)
    # torch.manual_seed also seeds every device type, which takes longer than a fork
    torch.default_generator.manual_seed(seed)
    if "numpy.random" in sys.modules:  # otherwise it is seeded from the OS when it is imported
        import numpy.random

        # `random` is seeded with the same two words; the third makes NumPy's stream a different one
        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])

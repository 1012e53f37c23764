"""Random numbers of their own for every worker and every part, the same whenever the seed is."""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def seed_from(*numbers: int) -> int:
    """A seed that differs, in all its parts, wherever any of the numbers does."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed torch, random and NumPy.

    Forked workers would otherwise all draw the same numbers, and those that the script draws next.
    """
    random.seed(seed)
    # torch.manual_seed looks at every kind of device, which takes longer than a fork
    torch.default_generator.manual_seed(seed)
    if "numpy.random" in sys.modules:  # otherwise it seeds itself when it is loaded
        import numpy.random

        # `random` begins with the same two numbers; the third makes it another stream
        numpy.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])

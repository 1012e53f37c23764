"""Where torchvision is for tests: its definitions of networks, aside from all else.

Its wheel is made for one torch, often with CUDA. Beside another it cannot be imported as it is, and
packages that look for it fail then.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(sys.prefix) / "torchvision"


def is_there() -> bool:
    """Whether it can be imported, by way of that folder or anyhow."""
    return FOLDER.is_dir() or find_spec("torchvision") is not None

"""Draw the pictures of the manual: `python -m docs.pictures [NAME ...]`, from the top folder.

All but the recording of a terminal are drawn if no name is given.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

NAMES = ("arrow", "arena", "ranks", "roofline", "speedups", "split")
"""Pictures that are drawn from data; `terminal` is recorded."""


def main() -> None:
    """Write each picture beside its module."""
    for name in sys.argv[1:] or NAMES:
        picture = import_module(f"docs.pictures.{name}").picture()
        Path(__file__).with_name(f"{name}.svg").write_text(picture)


if __name__ == "__main__":
    main()

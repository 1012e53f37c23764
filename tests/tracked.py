"""Copies of the files that are tracked, from which packages are built."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copy_tracked(folder: Path) -> Path:
    """Copy what a package is built from into a folder, and return it."""
    listed = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True)
    for name in filter(None, listed.split("\0")):
        if name.startswith(("cputrain/", "launch/", "docs/")) or "/" not in name:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return folder

"""Folders for the output of trials and for compiled models."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager

from cputrain.machine.cache import cache_folder
from cputrain.tune.store import cache_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILE_CACHE = "compiled"
"""Subfolder with TorchInductor's cache, shared by all trials so that each model compiles once."""


def trials_path(script: str) -> str:
    """Return the folder that keeps the output of a script's trials until it is tuned again."""
    return os.path.join(cache_folder(), "trials", cache_name(script))


@contextmanager
def trials_folder(script: str) -> Iterator[str]:
    """Empty a script's trials folder and yield its path; remove its compile cache at the end.

    The compile cache is large, and a launch uses the user's own. Where the cache folder is not
    writable, a temporary folder takes its place.
    """
    path = trials_path(script)
    try:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="cputrain-trials-") as path:
            yield path
    else:
        try:
            yield path
        finally:
            shutil.rmtree(os.path.join(path, COMPILE_CACHE), ignore_errors=True)

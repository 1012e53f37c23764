"""Where trials keep what they print, and what they compile."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager

from cputrain.machine.cache import cache_folder
from cputrain.tune.store import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILED = "compiled"
"""The folder in it that all trials share, so that each model is compiled once."""


def path_of_trials(script: str) -> str:
    """Where the output of a script's trials is kept until it is tuned again."""
    return os.path.join(cache_folder(), "trials", name_of(script))


@contextmanager
def trials_folder(script: str) -> Iterator[str]:
    """That folder, empty; one that is gone afterwards, where there is no cache to write to.

    What trials compiled is gone in any case: it takes much room, and a launch has the user's cache.
    """
    path = path_of_trials(script)
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
            shutil.rmtree(os.path.join(path, COMPILED), ignore_errors=True)

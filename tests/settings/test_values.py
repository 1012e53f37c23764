"""Values that settings apply, and those that a platform has."""

from __future__ import annotations

import torch

from cputrain.settings.short_waits import SETTING as SHORT_WAITS
from cputrain.settings.start_method import METHODS, methods_of


def test_waits_are_watched_only_where_they_are_to_be_short() -> None:
    assert SHORT_WAITS.apply(torch, False) is None


def test_windows_has_one_start_method() -> None:
    assert methods_of("win32") == ("spawn",)
    assert methods_of("linux") == METHODS
    assert {"fork", "spawn", "forkserver"} == set(METHODS)

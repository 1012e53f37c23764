"""The compiler of C++ that tests have, or do without."""

from __future__ import annotations

import pytest


def hide_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cputrain see no compiler of C++ until a test ends.

    Torch reads CXX once, when it loads Inductor's settings. If that were meanwhile, later tests of
    the process would have no compiler either.
    """
    import torch._inductor.config  # noqa: F401

    monkeypatch.setenv("CXX", "none")

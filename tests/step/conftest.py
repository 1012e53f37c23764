"""One thread for each test, and Inductor, imported before them.

Their warnings are errors, and torch warns of its own code when Inductor is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from cputrain.step.contest import Contest
from tests.compilers import hide_compiler


@pytest.fixture(autouse=True, scope="package")
def _inductor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._inductor.compile_fx  # noqa: F401


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def _replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay graphs, which takes no time to compile, and time no steps."""
    hide_compiler(monkeypatch)
    monkeypatch.setattr("cputrain.step.recorded.recorder.MAX_SECONDS", 60.0)
    monkeypatch.setattr(Contest, "end", lambda _: False)
    monkeypatch.setattr(Contest, "begin", lambda _: True)

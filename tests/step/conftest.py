"""One thread for each test, and Inductor, imported before them.

Their warnings are errors, and torch warns of its own code when Inductor is imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch


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

"""The roof of this machine, measured once for all tests of diagnose."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def roof_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder that the workers of pytest-xdist share."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if hasattr(request.config, "workerinput") else folder) / "roof"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def roof_lock(roof_cache: Path) -> AbstractContextManager[None]:
    """Return a context manager within which no other worker measures."""

    @contextmanager
    def locked() -> Iterator[None]:
        with (roof_cache / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return locked()

"""Data sets and loaders of libraries: batches under a launch are those that python has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.libraries.test_libraries import HERE, alike
from tests.torchvision_folder import FOLDER as TORCHVISION

LOADERS = HERE / "loaders"

NAMES = sorted(path.stem for path in LOADERS.glob("*.py") if path.stem != "batches")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_batches_are_those_of_python(name: str, tmp_path: Path) -> None:
    script = str(LOADERS / f"{name}.py")
    out, _ = alike(tmp_path, script, within=0.0, PYTHONPATH=str(TORCHVISION))
    assert out.count("batches") >= 10

"""What tests of backends begin with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cputrain.backends import probing
from tests.backends.planted import ALL

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Gives a function that installs packages and planted backends, for processes to come."""
    folder = tmp_path / "installed"
    folder.mkdir()
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(folder), str(ROOT), before]))
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(probing, "IMPORT_TIMEOUT_S", 10.0)  # the machine may be busy

    def install(*backends, package="planted", version="1.0", module="", points=()):
        info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
        lines = [f"{one} = tests.backends.planted:{ALL[one]}" for one in backends]
        lines += [f"{name} = {where}" for name, where in points]
        (info / "entry_points.txt").write_text("\n".join(["[cputrain.backends]", *lines, ""]))
        if module:
            (folder / module).mkdir()
            (folder / module / "__init__.py").write_text("raise ImportError('a broken build')\n")
        return folder

    return install

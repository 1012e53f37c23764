"""An environment with cputrain from its wheel, as a user has it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.tracked import copy_tracked


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of `python` and `cputrain` in a new environment with the wheel.

    What cputrain depends on is that of this environment.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_tracked(folder / "source")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", *quiet, "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("cputrain-*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin/python"
    subprocess.run([*pip, "--python", str(python), "install", *quiet, str(wheel)], check=True)
    packages = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return str(environment / "bin")

"""An environment with cputrain from its wheel, as a user has it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of `python` and `cputrain` in a new environment with the wheel.

    What cputrain depends on is that of this environment.
    """
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    tracked = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True)
    for name in filter(None, tracked.split("\0")):
        if name.startswith(("cputrain/", "launch/", "docs/cputrain.1")) or "/" not in name:
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", *quiet, "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("cputrain-*.whl")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin/python"
    subprocess.run([str(python), "-m", "pip", "install", *quiet, str(wheel)], check=True)
    packages = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return str(environment / "bin")

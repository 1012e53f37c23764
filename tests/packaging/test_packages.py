"""What is published: a wheel, a source distribution, a conda recipe and an image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import cputrain
from tests.tracked import ROOT, copy_tracked

SCRIPTS = Path(sysconfig.get_path("scripts"))


def run(*words: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution, built from the files that are tracked."""
    folder = tmp_path_factory.mktemp("built")
    source = copy_tracked(folder / "source")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_both_pass_twines_check(built: Path) -> None:
    packages = [*built.glob("*.whl"), *built.glob("*.tar.gz")]
    assert len(packages) == 2
    done = run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    assert done.returncode == 0, done.stdout


def test_the_wheel_has_all_that_is_not_python(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for end in (
        "cputrain/py.typed", "runtime/site/sitecustomize.py", "report/page/page.css",
        "launch/recipes/slurm.sbatch", "share/man/man1/cputrain.1", "scripts/cputrain",
    ):  # fmt: skip
        assert any(name.endswith(end) for name in names), end
    kernels = [name for name in names if name.endswith(".cl")]
    assert len(kernels) == len(list((ROOT / "cputrain/opencl/kernels").glob("*.cl")))
    assert not [name for name in names if name.startswith(("tests", "docs/"))]


@pytest.mark.long
def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    done = run(
        sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, source
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (first,), (second,) = built.glob("*.whl"), tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(first).namelist()) == sorted(zipfile.ZipFile(second).namelist())


def test_the_image_passes_hadolint() -> None:
    done = run(SCRIPTS / "hadolint", "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_copies_what_a_wheel_needs() -> None:
    copied = re.findall(r"(?m)^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text())
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_development_container_makes_the_environment() -> None:
    document = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert "make .venv/tested" in document["postCreateCommand"]


def test_the_conda_recipe_is_rendered_with_todays_version() -> None:
    from rattler_build import Stage0Recipe, VariantConfig

    recipe = Stage0Recipe.from_file(ROOT / "docs/packaging/recipe.yaml")
    (rendered,) = recipe.render(VariantConfig())
    assert f"version='{cputrain.__version__}'" in repr(rendered)


def test_requirements_of_all_packages_agree() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "docs/packaging/recipe.yaml").read_text())
    conda = {re.split(r"[ >=<]", one)[0] for one in recipe["requirements"]["run"]} - {"python"}
    pip = {re.split(r"[ >=<]", one)[0] for one in project["dependencies"]}
    assert {"torch" if name == "pytorch" else name for name in conda} == pip


def test_the_changelog_has_the_version_with_its_date() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"(?m)^## {re.escape(cputrain.__version__)} \(\d{{4}}-\d\d-\d\d\)$", text)


def test_extras_are_pinned_to_what_was_proved() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name in ("zendnn", "ipex"):
        assert all("==" in requirement for requirement in extras[name]), name
    assert os.path.exists(ROOT / "constraints.txt")

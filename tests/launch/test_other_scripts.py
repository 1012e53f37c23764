"""Scripts nobody here wrote: under everything that a launch may do, and under `cputrain tune`."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree

from cputrain.tune.trial import SITE
from tests.launch.programs import LAUNCH, PYTHON, environment, launch, plain, verb
from tests.selected import cases, selected
from tests.tune.test_trials import made, trial

SCRIPTS = Path(__file__).parents[1] / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))

SHORT = ("accumulation", "finetune", "gan_two_optimizers", "hooks", "lbfgs")
"""Scripts that `make test` runs: they import no framework."""

EXACT = ("--channels-last=on", "--attention=math", "--loader=on", "--fused-optimizer=on")

QUICK = {"OMP_NUM_THREADS": "1", "BACKEND": "aot_eager"}
"""Tensors this small have no work for two threads; and which compiler compiled_already.py uses."""

BF16 = (
    '{"modules":"safetensors.torch","values":{"precision":"bf16","channels_last":true,"attention":"float32"},'
    '"environment":{},"settings":{}}'
)
"""A plan that no machine without such instructions would make."""


DIVIDED = '{"values":{"replicas":2},"environment":{},"settings":{}}'
"""On a machine with a single core, too."""


class Ran(NamedTuple):
    """What came of a script."""

    code: str
    losses: list[float]
    said: list[str]
    err: str
    folder: Path

    def files(self) -> set[str]:
        """What it wrote."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)) for path in found}


def run_scripts(
    request: pytest.FixtureRequest, folder: Path, *before: str, **changes: str
) -> dict[str, Ran]:
    """Run the scripts of the selected tests, and return the result of each by name."""
    names = selected(request, NAMES, __file__)
    paths = [str(SCRIPTS / f"{name}.py") for name in names]
    driver = str(Path(__file__).with_name("one_after_another.py"))
    subprocess.run(
        [*before, driver, str(folder), *paths],
        env=environment(folder, **QUICK, **changes),
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=600,
    )
    return {name: ran(folder / name) for name in names}


def ran(folder: Path) -> Ran:
    """Read what the driver left."""
    code, out, err = (folder.with_suffix(f".{what}").read_text() for what in ("code", "out", "err"))
    # what the Trainer of transformers says of itself tells how long it took
    lines = [line for line in out.splitlines() if not line.startswith("{")]
    losses = [float(line.removeprefix("loss ")) for line in lines if line.startswith("loss ")]
    said = [line for line in lines if not line.startswith("loss ")]
    return Ran(code, losses, said, err, folder)


@pytest.fixture(scope="session")
def python(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """Under plain python."""
    return run_scripts(request, tmp_path_factory.mktemp("python"), PYTHON)


@pytest.fixture(scope="session")
def exact(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """Under a launch with every exact setting but compiling."""
    return run_scripts(request, tmp_path_factory.mktemp("exact"), *LAUNCH, "--quiet", *EXACT)


@pytest.fixture(scope="session")
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """Under a launch that records steps, which replays operators where there is no compiler."""
    folder = tmp_path_factory.mktemp("recorded")
    return run_scripts(request, folder, *LAUNCH, "--quiet", "--record-step=auto", CXX="none")


@pytest.fixture(scope="session")
def divided(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """With every batch in two parts."""
    folder = tmp_path_factory.mktemp("divided")
    return run_scripts(request, folder, PYTHON, PYTHONPATH=SITE, CPUTRAIN_PLAN=DIVIDED)


@pytest.fixture(scope="session")
def reduced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ran]:
    """Within bf16 autocast."""
    folder = tmp_path_factory.mktemp("bf16")
    return run_scripts(request, folder, PYTHON, PYTHONPATH=SITE, CPUTRAIN_PLAN=BF16)


@pytest.mark.parametrize("package", ["accelerate", "lightning", "transformers", "safetensors"])
def test_what_the_scripts_use_is_installed(package: str) -> None:
    assert version(package)


@pytest.mark.parametrize("name", cases(NAMES, SHORT))
def test_a_script_runs_under_plain_python(name: str, python: dict[str, Ran]) -> None:
    assert python[name].code == "0", python[name].err
    assert len(python[name].losses) >= 9


def assert_unnoticed(ours: Ran, theirs: Ran) -> None:
    """It ended as under plain python, printed and wrote the same, and nothing of cputrain."""
    assert ours.code == "0", ours.err
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-3, abs=1e-6)
    assert ours.said == theirs.said
    assert ours.files() == theirs.files()
    assert "cputrain" not in ours.err


@pytest.mark.parametrize("name", cases(NAMES, SHORT))
def test_a_script_does_not_notice_what_is_exact(
    name: str, python: dict[str, Ran], exact: dict[str, Ran]
) -> None:
    theirs, ours = python[name], exact[name]
    assert_unnoticed(ours, theirs)
    for file in sorted(ours.files()):
        if file.endswith("weights.pt"):
            compare(ours.folder / file, theirs.folder / file)


def compare(ours: Path, theirs: Path) -> None:
    """Files of weights: the same names, and tensors as plain python would have saved them."""
    (values, shape), (expected, known) = (
        _pytree.tree_flatten(torch.load(path, weights_only=True)) for path in (ours, theirs)
    )
    assert shape == known
    for value, other in zip(values, expected, strict=True):
        if isinstance(value, torch.Tensor):
            assert value.stride() == other.stride()
            assert torch.allclose(value.double(), other.double(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", cases(NAMES, SHORT))
def test_a_script_does_not_notice_that_its_steps_are_recorded(
    name: str, python: dict[str, Ran], recorded: dict[str, Ran]
) -> None:
    assert_unnoticed(recorded[name], python[name])


@pytest.mark.parametrize("name", cases(NAMES, SHORT))
def test_a_script_does_not_notice_that_its_batches_are_divided(
    name: str, python: dict[str, Ran], divided: dict[str, Ran]
) -> None:
    assert_unnoticed(divided[name], python[name])


@pytest.mark.parametrize("name", cases(NAMES, SHORT))
def test_a_script_runs_with_fewer_bits(
    name: str, python: dict[str, Ran], reduced: dict[str, Ran]
) -> None:
    theirs, ours = python[name], reduced[name]
    assert ours.code == "0", ours.err
    far = [abs(a - b) / max(abs(b), 1e-6) for a, b in zip(ours.losses, theirs.losses, strict=True)]
    assert sum(far) / len(far) < 0.1
    assert ours.files() == theirs.files()


COMPILED = {
    "accelerate_loop": "1 model compiled",
    "checkpointing": "6 models compiled",
    "compiled_already": "1 model compiled",
    "hooks": "",
    "penalty": "",
    "traced": "2 models compiled",
}
"""Scripts that compiling could break, and how many models of theirs are compiled."""


@pytest.mark.parametrize("name", cases(COMPILED, SHORT))
def test_a_script_does_not_notice_that_its_models_are_compiled(
    name: str, python: dict[str, Ran], tmp_path: Path
) -> None:
    path = str(SCRIPTS / f"{name}.py")
    done = launch(tmp_path, "--compile=on", path, **QUICK)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("loss ")]
    losses = [float(line.removeprefix("loss ")) for line in found]
    assert losses == pytest.approx(python[name].losses, rel=1e-3, abs=1e-6)
    said = done.stderr.splitlines()[-1]
    assert COMPILED[name] in said
    assert (" compiled" in said) == bool(COMPILED[name])


def test_options_after_the_script_are_the_scripts(tmp_path: Path) -> None:
    words = ("--steps", "8", "-a2", "--plan", "b", "--threads=7", "--compile", "--budget", "high")
    path = str(SCRIPTS / "accumulation.py")
    done, expected = (run(tmp_path, path, *words, "--amp", "fail") for run in (launch, plain))
    assert done.returncode == expected.returncode == 3, done.stderr
    assert done.stdout.splitlines()[0] == "options 8 b 7 True high ['fail']"
    assert done.stdout == expected.stdout
    assert "compiled" not in done.stderr


# under tune

TUNED = {
    # backward passes for each step
    "accelerate_loop": 4,
    "accumulation": 4,
    "hf_trainer": 2,
    "lbfgs": None,
    "lightning_classifier": 1,
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home and a working folder of its own."""
    for name, value in environment(tmp_path, **QUICK).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", cases(TUNED, ()))
def test_each_step_is_counted_once_and_each_loss_written_down(
    name: str, python: dict[str, Ran], alone: Path
) -> None:
    found = trial(made(alone, (SCRIPTS / f"{name}.py").read_text(), steps=5))
    assert found.num_optimizers == 1
    steps = len(found.times) + 3
    assert steps == 8
    each = TUNED[name]
    if each is not None:
        assert len(found.losses) == each * steps
    printed = python[name].losses
    if name == "lbfgs":  # it prints the first of each step
        assert len(found.losses) > steps
        assert found.losses[0] == pytest.approx(printed[0], rel=1e-3)
    elif name == "accumulation":  # it prints a norm after each step
        assert [4 * loss for loss in found.losses[:4]] == pytest.approx(printed[:4], rel=1e-3)
    elif name != "hf_trainer":  # which seeds, and prints means
        assert each is not None
        assert [each * loss for loss in found.losses] == pytest.approx(
            printed[: len(found.losses)], rel=1e-3
        )


@pytest.mark.parametrize("name", cases(TUNED, ("accumulation",)))
def test_tune_ends_with_a_clear_line_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    path = work / f"{name}.py"
    path.write_bytes((SCRIPTS / f"{name}.py").read_bytes())
    words = ("tune", "--budget", "10s", "--steps", "5", str(path))
    done = verb(tmp_path, *words, where=work, **QUICK)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    # on a busy machine a trial may not be over in its time
    told = done.stderr.replace("rejected: it did not complete its steps", "")
    assert "rejected" not in told
    lines = done.stdout.splitlines()
    if lines[-1].startswith("Output of the trials: "):  # one was rejected
        lines.pop()
    assert lines[-1].endswith(("from now on.", ".", "(--budget gives more)."))
    assert os.listdir(work) == [path.name]

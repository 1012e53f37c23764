"""Launches compile the kernels once, prove them, and do without them where they cannot be had."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cputrain.kernels.build import find_compiler
from tests.launch.programs import LAUNCH, environment, launch, plain, run, script

COMPILER = find_compiler()

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

SCRIPT = """
import json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 16, 3),
    nn.BatchNorm2d(16), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
losses = []
for step in range(6):
    images, labels = torch.randn(32, 3, 30, 30), torch.randint(4, (32,))
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
print(json.dumps([losses, model.state_dict()["1.running_var"].tolist()]))
"""
"""A model whose first batch norms are large enough for the kernels."""

THREADS = ("--threads", "2")
"""Inputs are large enough for the kernels if each thread has enough of them."""

USED = "batch norm by kernels in C"

KERNELS = ("batch_norm", "cross_entropy")


def numbers(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Losses and running variances."""
    assert done.returncode == 0, done.stderr
    losses, variances = json.loads(done.stdout)
    return [*losses, *variances]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("plain")
    return numbers(plain(folder, str(script(folder, SCRIPT))))


def check(done: subprocess.CompletedProcess[str], expected: list[Any], said: str) -> None:
    """A run has python's losses, and says what became of the kernels."""
    assert numbers(done) == pytest.approx(expected, rel=1e-3)
    assert said in done.stderr


@needs_compiler
def test_kernels_are_used_and_can_be_switched_off(tmp_path: Path, expected: list[Any]) -> None:
    path = str(script(tmp_path, SCRIPT))
    check(launch(tmp_path, *THREADS, path), expected, USED)
    done = launch(tmp_path, *THREADS, "--c-kernels", "off", path)
    check(done, expected, "")
    assert "batch norm" not in done.stderr


@needs_compiler
def test_small_batch_norms_are_torchs(tmp_path: Path) -> None:
    path = str(script(tmp_path, SCRIPT.replace("32, 3, 30, 30", "32, 3, 9, 9")))
    done = launch(tmp_path, *THREADS, path)
    assert done.returncode == 0
    assert "batch norm" not in done.stderr
    assert not (tmp_path / "home/cache/cputrain/kernels").exists()


@needs_compiler
def test_they_are_compiled_once_by_any_number_of_processes(
    tmp_path: Path, expected: list[Any]
) -> None:
    path = str(script(tmp_path, SCRIPT))
    started = [
        subprocess.Popen(
            [*LAUNCH, *THREADS, path], cwd=tmp_path, env=environment(tmp_path), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in started:
        out, said = process.communicate(timeout=120)
        done = subprocess.CompletedProcess([], process.returncode, out, said)
        check(done, expected, USED)
    (library,) = (tmp_path / "home/cache/cputrain/kernels").iterdir()
    before = library.stat().st_mtime_ns
    check(launch(tmp_path, *THREADS, path), expected, USED)
    assert library.stat().st_mtime_ns == before


def test_without_a_compiler_batch_norm_is_torchs(tmp_path: Path, expected: list[Any]) -> None:
    path = str(script(tmp_path, SCRIPT))
    done = launch(tmp_path, *THREADS, path, PATH="/nowhere")
    check(done, expected, "batch norm as torch computes it (there is no C compiler (cc, gcc, clang")
    done = launch(tmp_path, *THREADS, path, CC="absent-cc")
    check(done, expected, "batch norm as torch computes it (there is no C compiler (absent-cc))")


def compiler(folder: Path, text: str) -> str:
    """A program that takes the place of the compiler."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo 'error: no such chip' >&2; exit 1", "compiler cannot compile it (error: no such"),
        ("exit 3", "compiler cannot compile it (exit code 3)"),
        ("kill -9 $$", "compiler cannot compile it (exit code -9)"),
        ("exit 0", "No such file"),
        ('for last; do :; done; while [ "$1" != -o ]; do shift; done; echo 1 > "$2"', ".so"),
        (f'exec {COMPILER} -Dsqrt=fabs "$@"', "the compiled kernels are wrong"),
    ],
)
def test_a_wrong_compiler_does_no_harm(
    tmp_path: Path, expected: list[Any], text: str, said: str
) -> None:
    path = str(script(tmp_path, SCRIPT))
    done = launch(tmp_path, *THREADS, path, CC=compiler(tmp_path, text))
    check(done, expected, "batch norm as torch computes it (")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@needs_compiler
def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, expected: list[Any]) -> None:
    path = str(script(tmp_path, SCRIPT))
    done = launch(tmp_path, *THREADS, path, XDG_CACHE_HOME="/proc/none")
    check(done, expected, "batch norm as torch computes it (/proc/none")


@pytest.mark.long  # torch is imported in a quarter of a minute
@needs_compiler
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Kernels read and write nothing beyond tensors, and do nothing that is undefined in C."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    found = run(("gcc", "-print-file-name=libasan.so"), tmp_path).stdout.strip()
    if not Path(found).is_file():
        pytest.skip("gcc has no address sanitizer")
    tests = [str(Path(__file__).with_name(f"test_{name}.py")) for name in KERNELS]
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -g -w"
    done = run(
        (
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *tests,
            "-k",
            "float64",
        ),
        Path(__file__).parents[2],
        CC=compiler(tmp_path, f'exec gcc {flags} "$@"'),
        LD_PRELOAD=found,
        ASAN_OPTIONS="detect_leaks=0",
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


WORDS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(2000, 16), nn.Linear(16, 2000))
optimizer = torch.optim.SGD(model.parameters(), 0.5)
losses = []
for step in range(6):
    words = torch.randint(2000, (300,))
    loss = nn.functional.cross_entropy(model(words), words)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
print(losses, loss)
"""
"""A model with enough classes for the kernels."""


@needs_compiler
def test_a_cross_entropy_over_many_classes_is_computed_by_kernels(tmp_path: Path) -> None:
    path = str(script(tmp_path, WORDS))
    theirs = plain(tmp_path, path)
    ours = launch(tmp_path, path)
    assert "cross entropy by kernels in C" in ours.stderr
    assert "batch norm" not in ours.stderr
    numbers_of = r"[0-9.]+"
    theirs_numbers, ours_numbers = (
        [float(number) for number in re.findall(numbers_of, done.stdout)] for done in (theirs, ours)
    )
    assert ours_numbers == pytest.approx(theirs_numbers, rel=1e-5)
    assert re.sub(numbers_of, "", ours.stdout) == re.sub(numbers_of, "", theirs.stdout)
    done = launch(tmp_path, path, PATH="/nowhere")
    assert "cross entropy as torch computes it (there is no C compiler" in done.stderr

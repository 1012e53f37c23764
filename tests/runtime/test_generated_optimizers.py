"""Optimizers in generated scripts: nobody can tell fused ones from torch's but by the clock.

Each run draws new cases. `CASES_SEED=N python -m pytest tests/runtime/test_generated_optimizers.py`
draws those of a run again; its number is a part of every failure.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest
import torch

from cputrain.runtime.plain_tensors import PlainTensors
from tests.runtime.optimizer_cases import as_script, compare, generate, reduce
from tests.selected import some

SEED = int(os.environ.get("CASES_SEED") or random.SystemRandom().randrange(1 << 32))

CHUNKS, CASES = 20, 100

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("chunk", some(range(CHUNKS), 1))
def test_scripts_do_the_same(chunk: int) -> None:
    for number in range(chunk * CASES, (chunk + 1) * CASES):
        lines = generate(f"{SEED}-{number}")
        if compare(lines):
            fewest = reduce(lines)
            told = "\n".join(line[:500] for line in compare(fewest))
            pytest.fail(
                f"CASES_SEED={SEED}, case {number}:\n{told}\n\n{as_script(fewest)}", pytrace=False
            )


def _find(limit: int = 400) -> list[str]:
    """Return the first of some cases that differs, reduced."""
    for number in range(limit):
        lines = generate(f"mutants-{number}")
        if compare(lines):
            return reduce(lines)
    return []


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert _find(40) == []


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        (torch._C, "_increment_version", lambda _: None),
        pytest.param(PlainTensors, "are_disjoint", lambda *_: True, marks=pytest.mark.long),
        pytest.param(PlainTensors, "are_step_counts", lambda *_: True, marks=pytest.mark.long),
        (PlainTensors, "is_plain_context", lambda _: True),
        (PlainTensors, "_have_one_order", lambda *_: True),
    ],
    ids=["versions", "overlaps", "steps", "modes", "layouts"],
)
def test_a_fault_is_found_and_told_in_few_lines(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, mutant: object
) -> None:
    monkeypatch.setattr(place, name, mutant)
    lines = _find()
    assert lines
    assert len(as_script(lines).splitlines()) <= 15


def test_what_is_told_is_a_script_that_shows_the_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_increment_version", lambda _: None)
        script = as_script(_find())
    mutant = "import torch; torch._C._increment_version = lambda _: None\n"
    for prefix, is_same in ((mutant, False), ("", True)):
        done = subprocess.run(
            [sys.executable, "-c", prefix + script],
            capture_output=True, text=True, check=True, timeout=100,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        plain, _, patched = done.stdout.partition("True [")
        versions = [re.findall(r"(\d+)\)[,\]]", half) for half in (plain, patched)]
        assert versions[0]
        assert (versions[0] == versions[1]) == is_same

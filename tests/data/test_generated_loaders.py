"""Loaders in generated scripts: nobody can tell ours from torch's but by the clock.

Each run draws new cases. `CASES_SEED=N python -m pytest tests/data/test_generated_loaders.py` draws
those of a run again; its number is a part of every failure.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from cputrain.data import columns, memory
from cputrain.split import dispatcher
from tests.data.loader_cases import compare, generate, is_in_memory, reduce
from tests.selected import some

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = int(os.environ.get("CASES_SEED") or random.SystemRandom().randrange(1 << 32))

CHUNKS, CASES, CASES_WITH_WORKERS = 10, 60, 3

pytestmark = pytest.mark.usefixtures("one_thread")


def check(seed: str, workers: int = 0) -> None:
    lines = generate(seed, workers)
    while workers and not is_in_memory(lines):
        seed += "+"
        lines = generate(seed, workers)
    if compare(lines) and (difference := compare(lines)):  # of two, one may be a delayed worker's
        fewest = reduce(lines)
        told = "\n".join(line[:2000] for line in compare(fewest) or difference)
        case = "\n".join(fewest)
        pytest.fail(f"CASES_SEED={SEED}, case {seed}:\n{told}\n\n{case}", pytrace=False)


@pytest.mark.parametrize("chunk", some(range(CHUNKS), 4))
def test_scripts_see_the_same(chunk: int) -> None:
    for number in range(chunk * CASES, (chunk + 1) * CASES):
        check(f"{SEED}-{number}")


# of torch's own iterator, where its __init__ has raised an error
@pytest.mark.filterwarnings("ignore:.*_MultiProcessingDataLoaderIter.__del__")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("chunk", some(range(5), 2))
def test_scripts_with_workers_see_the_same(chunk: int, workers: int) -> None:
    for number in range(CASES_WITH_WORKERS):
        check(f"{SEED}-{chunk}-{number}", workers)


@pytest.fixture
def exchanged() -> Iterator[None]:
    """Functions of torch are a `Split`'s, as in a script that has made one."""
    before = set(dispatcher._patches)
    dispatcher.exchange()
    yield
    for name in set(dispatcher._patches) - before:
        dispatcher._patches.pop(name).undo()


@pytest.mark.usefixtures("exchanged")
def test_an_error_of_a_function_that_a_split_exchanged_is_torchs() -> None:
    lines = [
        "ds = Rows(12, lambda row: torch.rand(row + 1)[:2])",
        "loader = LOADER(ds, batch_sampler=[[1.0], [2]])",
        "it = iter(loader)",
        "batch = next(it)",
    ]
    assert not compare(lines)


def _find(limit: int = 500) -> bool:
    return any(compare(generate(f"mutants-{number}")) for number in range(limit))


@pytest.mark.parametrize(
    ("place", "name", "mutant"),
    [
        pytest.param(columns, "_is_changed", lambda *_: False, marks=pytest.mark.long),
        (columns, "is_plain", lambda tensor: isinstance(tensor, torch.Tensor)),
        (memory, "hide_frames", lambda _: None),
        (columns, "_none_if_empty", lambda batch: batch.t()),
    ],
    ids=["replaced", "kinds", "frames", "strides"],
)
def test_a_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(place, name, mutant)
    assert _find()

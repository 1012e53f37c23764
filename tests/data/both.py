"""The same work for torch's loader and for ours."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils.data

import cputrain.data
from tests.data.alike import assert_alike

Loader = type[torch.utils.data.DataLoader[Any]]


class ForkedLoader(torch.utils.data.DataLoader[Any]):
    """Torch's loader with forked workers: the batches are the same, and none imports torch anew."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if options.get("multiprocessing_context") in ("spawn", "forkserver"):
            options["multiprocessing_context"] = "fork"
        super().__init__(*args, **options)


ForkedLoader.__name__ = "DataLoader"  # as torch's messages have it


def seeded(work: Callable[[Loader], Any], loader: Loader) -> dict[str, Any]:
    """What came of the work, or how it failed, and where the random numbers are after it."""
    torch.manual_seed(11)
    random.seed(12)
    np.random.seed(13)
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found["result"] = work(loader)
        except Exception as error:
            found["error"] = type(error), str(error)
    found["warnings"] = [
        str(one.message) for one in warned if "multi-threaded" not in str(one.message)
    ]
    found["random"] = random.random(), np.random.rand(), torch.get_rng_state()
    return found


def assert_same(work: Callable[[Loader], Any], *, fails: bool = False) -> dict[str, Any]:
    """Fails unless both loaders give the same; what ours gave."""
    theirs = seeded(work, ForkedLoader)
    ours = seeded(work, cputrain.data.DataLoader)
    assert ("error" in theirs) == fails, theirs.get("error")
    if fails:
        assert ours.get("error") == theirs["error"]
    assert_alike(ours, theirs)
    return ours


def epochs(dataset: Any, count: int = 1, **options: Any) -> Callable[[Loader], Any]:
    """Every batch of so many epochs, and the state of the generator, if there is one."""
    generator = options.get("generator") or getattr(options.get("sampler"), "generator", None)
    before = None if generator is None else generator.get_state()

    def work(loader: Loader) -> Any:
        if generator is not None:
            generator.set_state(before)
        made = loader(dataset, **options)
        batches = [list(made) for _ in range(count)]
        return (
            batches,
            len(made) if hasattr(dataset, "__len__") else 0,
            generator and generator.get_state(),
        )

    return work

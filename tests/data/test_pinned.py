"""Pinned batches: what torch does in a thread of its own, while workers and script go on.

Without an accelerator the copy into pinned memory is left out, and all the rest is torch's own:
the thread, the queues, and the order in which they are served.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import TensorDataset
from torch.utils.data._utils import pin_memory

from cputrain.data import DataLoader


class Pictures(torch.utils.data.Dataset[Any]):
    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at = dies_at

    def __len__(self) -> int:
        return 400

    def __getitem__(self, row: int) -> Any:
        if row == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        chance = np.random.default_rng(row)
        return {"x": chance.integers(0, 256, (3, 48, 48), dtype=np.uint8), "row": row}


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many batches have been pinned so far."""
    count = [0]
    own = pin_memory.pin_memory

    def counted(data: Any, device: Any = None) -> Any:
        count[0] += isinstance(data, (dict, list))
        return own(data, device) if real else data

    real = torch.accelerator.is_available()
    if not real:
        accelerator = torch.accelerator
        monkeypatch.setattr(accelerator, "is_available", lambda: True)
        monkeypatch.setattr(accelerator, "current_accelerator", lambda: torch.device("cuda"))
        monkeypatch.setattr(accelerator, "current_device_index", lambda: 0)
        monkeypatch.setattr(accelerator, "set_device_index", lambda _: None)
    monkeypatch.setattr(pin_memory, "pin_memory", counted)
    yield lambda: count[0]
    # torch's thread has said that it has one: threads to come would begin with that
    torch.set_num_threads(torch.get_num_threads())


def epochs(kind: Any, dataset: Any, **arguments: Any) -> list[Any]:
    torch.manual_seed(0)
    loader = kind(dataset, 16, shuffle=True, pin_memory=True, **arguments)
    found = []
    for _ in range(3):
        for batch in loader:
            parts = batch.values() if isinstance(batch, dict) else batch
            found.append([part.double().sum().item() for part in parts])
    return found


@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}],
)
def test_batches_are_pinned_as_torch_pins_them(
    pinned: Callable[[], int], arguments: dict[str, Any]
) -> None:
    for dataset in (Pictures(), TensorDataset(torch.randn(400, 3000), torch.arange(400))):
        theirs = epochs(torch.utils.data.DataLoader, dataset, **arguments)
        before = pinned()
        assert epochs(DataLoader, dataset, **arguments) == theirs
        assert pinned() - before >= len(theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_they_lie_in_pinned_memory() -> None:
    for dataset in (Pictures(), TensorDataset(torch.randn(400, 3000), torch.arange(400))):
        for workers in (0, 2):
            for batch in DataLoader(dataset, 16, pin_memory=True, num_workers=workers):
                parts = list(batch.values() if isinstance(batch, dict) else batch)
                assert all(part.is_pinned() for part in parts)


def test_a_worker_that_dies_is_noticed_behind_the_thread(pinned: Callable[[], int]) -> None:
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"[Kk]illed|SIGKILL"):
        list(DataLoader(Pictures(dies_at=40), 4, num_workers=2, pin_memory=True))
    assert time.monotonic() - begin < 30
    assert pinned() > 0

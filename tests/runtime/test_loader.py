"""Every DataLoader of an unmodified script, without a line of it being changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.programs import launch, ours, plain, script

SCRIPT = """
import json
import torch
import torch.utils.data
from torch.utils.data import DataLoader, Dataset, TensorDataset, dataloader

class Own(Dataset):
    def __len__(self):
        return 9
    def __getitem__(self, row):
        return {"row": row, "noise": torch.rand(3000)}

class Sub(DataLoader):
    "A loader of a library's own, as Accelerate has one."
    def __iter__(self):
        for batch in super().__iter__():
            yield batch

def recreate(loader):
    "As Lightning does it: from the attributes that its arguments are kept in."
    import inspect
    names = [n for n in inspect.signature(type(loader).__init__).parameters if n in vars(loader)]
    kept = {n: getattr(loader, n) for n in names}
    kept.update(batch_sampler=None, shuffle=True, sampler=None)
    return type(loader)(**kept)

if __name__ == "__main__":
    torch.manual_seed(1)
    rows = TensorDataset(torch.randn(50, 4), torch.arange(50))
    first = DataLoader(rows, batch_size=8, shuffle=True, num_workers=2)
    found, kinds = [], []
    for loader in (
        first,
        torch.utils.data.DataLoader(rows, batch_size=7),
        recreate(first),
        dataloader.DataLoader(Own(), batch_size=4, num_workers=2, persistent_workers=True),
        Sub(Own(), batch_size=3, num_workers=1),
        DataLoader(Own(), batch_size=2),
    ):
        assert isinstance(loader, DataLoader)
        iterator = loader._get_iterator()
        kinds.append(type(iterator).__name__)
        del iterator
        for _ in range(2):
            for batch in loader:
                batch = list(batch.values()) if isinstance(batch, dict) else batch
                found.append([part.double().sum().item() for part in batch])
    print(json.dumps([kinds, found, torch.rand(1).item()]))
"""

TORCHS = ["_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"]


@pytest.fixture
def expected(tmp_path: Path) -> list[object]:
    script(tmp_path, SCRIPT)
    done = plain(tmp_path, "x.py")
    kinds, *answers = json.loads(done.stdout)
    assert set(kinds) == set(TORCHS)
    return list(answers)


def test_an_unmodified_script_gets_them_and_the_same_batches(
    tmp_path: Path, expected: list[object]
) -> None:
    done = launch(tmp_path, "x.py")
    assert done.returncode == 0, done.stderr
    kinds, *answers = json.loads(done.stdout)
    assert kinds == [
        "MemoryWorkersIterator",
        "MemoryIterator",
        "MemoryWorkersIterator",
        "WorkersIterator",
        "WorkersIterator",
        "ProcessIterator",
    ]
    assert answers == expected
    assert len(ours(done)) == len(done.stderr.splitlines()) == 1
    assert (
        "data loaders: 3 gathered from memory, 2 sharing memory with their workers, "
        "4 workers not needed" in done.stderr
    )


def test_off_leaves_torchs(tmp_path: Path, expected: list[object]) -> None:
    done = launch(tmp_path, "--loader", "off", "x.py")
    assert done.returncode == 0, done.stderr
    kinds, *answers = json.loads(done.stdout)
    assert set(kinds) == set(TORCHS)
    assert answers == expected
    assert "data loaders" not in done.stderr


BROKEN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Samples:
    def __len__(self):
        return 4
    def __iter__(self):
        raise TypeError("no order")

try:
    next(iter(DataLoader(TensorDataset(torch.arange(4)), sampler=Samples())))
except TypeError as error:
    print(error)
import cputrain.data.strategy
def fails(loader):
    raise AttributeError("a torch of tomorrow")
cputrain.data.strategy.columns_of_loader = fails
torch.manual_seed(3)
print(torch.cat([rows for (rows,) in DataLoader(TensorDataset(torch.arange(9)), shuffle=True)]))
torch.manual_seed(3)
print(torch.cat([rows for (rows,) in DataLoader([(n,) for n in range(9)], shuffle=True)]))
"""


def test_a_fault_of_ours_leaves_the_loader_to_torch_and_is_told(tmp_path: Path) -> None:
    script(tmp_path, BROKEN)
    done = launch(tmp_path, "x.py")
    assert done.returncode == 0, done.stderr
    raised, first, second = done.stdout.splitlines()
    assert raised == "no order"
    assert first == second
    told = [line for line in ours(done) if "[internal]" in line]
    assert told
    assert "a torch of tomorrow" in told[0]

"""torchdata: StatefulDataLoader, gone on from its state, and its nodes."""

import copy

import torch
from batches import described, seed, show, states
from torch.utils.data import DataLoader, TensorDataset
from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, ParallelMapper
from torchdata.stateful_dataloader import StatefulDataLoader


class Counting(torch.utils.data.IterableDataset):
    def __init__(self, count):
        self.count = count
        self.at = 0

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        step = 1 if info is None else info.num_workers
        first = 0 if info is None else info.id
        for row in range(first + self.at * step, self.count, step):
            self.at += 1
            yield torch.tensor([row, row * row])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def halves(name, make):
    """Print an epoch that is left in its middle, and gone on with by another loader."""
    loader = make()
    batches = iter(loader)
    for number in range(3):
        print(name, number, described(next(batches)))
    state = copy.deepcopy(loader.state_dict())
    del batches
    again = make()
    again.load_state_dict(state)
    for number, batch in enumerate(again):
        print(name, "on", number, described(batch))
    print(name, states())


def main():
    seed(0)
    rows = TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    for workers in (0, 2):
        show(f"stateful {workers}", StatefulDataLoader(rows, batch_size=3, num_workers=workers))
        halves(
            f"shuffled {workers}",
            lambda workers=workers: StatefulDataLoader(
                rows, batch_size=3, shuffle=True, num_workers=workers
            ),
        )
        halves(
            f"iterable {workers}",
            lambda workers=workers: StatefulDataLoader(
                Counting(30), batch_size=4, num_workers=workers
            ),
        )
    show("torch's own", DataLoader(Counting(30), batch_size=4, num_workers=2))
    node = Batcher(Mapper(IterableWrapper(range(17)), torch.tensor), 4)
    show("nodes", Loader(node))
    threads = ParallelMapper(IterableWrapper(range(17)), torch.tensor, num_workers=2)
    show("threads", Loader(Batcher(threads, 4)))


if __name__ == "__main__":
    main()

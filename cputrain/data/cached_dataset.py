"""A dataset in the place of another one: samples that were made before are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from cputrain.data.messages import say
from cputrain.data.sample_format import NotPackableError, packed, packed_parts, unpacked
from cputrain.data.sample_watch import DRAWS, SampleWatch, attributes_of, file_state
from cputrain.runtime.patching import uncounted

if TYPE_CHECKING:
    from cputrain.data.sample_store import SampleStore

NUM_PROVED = 32
"""Samples that each process makes twice at first."""

PROVED_EVERY = 16
"""After these, one in so many is made twice."""

CHECKED_EVERY = 64
"""Of samples that are read, one in so many is made again and compared."""


class CachedDataset:
    """The dataset of one process that makes batches.

    Args:
        dataset: the script's.
        store: where samples are kept.
        generators: of random numbers that the dataset holds.
    """

    def __init__(self, dataset: Any, store: SampleStore, generators: list[Any]) -> None:
        self.dataset = dataset
        self._store = store
        self._generators = generators
        self._num_made = self._num_read = 0

    def open(self, slot: int, *, is_scripts: bool) -> None:
        """Begin to read and write samples in this process.

        Args:
            slot: its number among several.
            is_scripts: whether the script's own dataset is used, which it may change at any time.
        """
        self._watch = SampleWatch(self._generators)
        self._is_scripts = is_scripts
        self._attributes = attributes_of(self.dataset)
        self._store.open(slot)

    def refresh(self) -> None:
        """Learn of the samples that other processes have kept."""
        self._store.refresh()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if self._store.is_refused or not self._is_known(index):
            return self.dataset[index]
        data = self._store.find(index)
        if data is None:
            return self._made(index)
        files, sample = unpacked(data)
        if any(file_state(path) != (path, *state) for path, *state in files):
            return self._made(index)
        self._num_read += 1
        if self._num_read % CHECKED_EVERY == 0:
            return self._made_again(index, packed(sample))
        self._store.count_hit()
        return sample

    def _is_known(self, index: Any) -> bool:
        if type(index) is not int:  # a sample may have the type in it
            self.refuse(f"their indices are of type {type(index).__name__}, and not int")
            return False
        if self._is_scripts and attributes_of(self.dataset) != self._attributes:
            return False  # changed since the epoch began
        return self._store.may_hold(index)

    def _made(self, index: int) -> Any:
        """Make a sample, and keep it if it comes out the same twice."""
        sample, reason, files = self._watch.make(self.dataset, index)
        self._attributes = self._watch.attributes
        if reason:
            who = self._watch.who_draws(self.dataset, index) if reason is DRAWS else ""
            self.refuse(who or reason)
            return sample
        if not self._store.has_room:
            return sample
        try:
            parts = packed_parts((files, sample))
        except NotPackableError as error:
            self.refuse(f"they hold {error}")
            return sample
        self._num_made += 1
        if self._num_made <= NUM_PROVED or self._num_made % PROVED_EVERY == 0:
            with self._watch.restored():
                again, reason, _ = self._watch.make(self.dataset, index)
            if not _are_same(again, reason, packed(sample)):
                self.refuse("two that were made of one index differ")
                return sample
        self._store.keep(index, parts)
        return sample

    def _made_again(self, index: int, kept: bytes) -> Any:
        """Make a sample that is kept, and let go of all that are kept if it differs."""
        sample, reason, _ = self._watch.make(self.dataset, index)
        if not _are_same(sample, reason, kept):
            self.refuse(reason or "one that was kept differs from the same one made again")
        return sample

    def refuse(self, reason: str) -> None:
        """Have no process keep or read samples from now on."""
        text = f"the samples of {type(self.dataset).__name__} are not cached: {reason}"
        if self._store.refuse(text):
            say(text)


def _are_same(sample: Any, reason: str, data: bytes) -> bool:
    """Return whether a sample, made for no `reason` to be another one, gives these bytes."""
    try:
        return not reason and packed(sample) == data
    except NotPackableError:
        return False


uncounted(CachedDataset.__getitem__)
uncounted(CachedDataset._made)
uncounted(CachedDataset._made_again)


class CachedWorkerInit:
    """A `worker_init_fn` that sees the script's own dataset, and begins to read what is kept."""

    def __init__(self, cached: CachedDataset, init_fn: Any) -> None:
        self._cached = cached
        self._init_fn = init_fn

    def __call__(self, worker_id: int) -> None:
        info: Any = get_worker_info()
        dataset = self._cached.dataset
        object.__setattr__(info, "dataset", dataset)  # which scripts may not set
        before = attributes_of(dataset)
        if self._init_fn is not None:
            self._init_fn(worker_id)
        self._cached.open(worker_id, is_scripts=False)
        for name, value in attributes_of(dataset).items():
            # (what is opened here, as a file, tells nothing by itself)
            if before.get(name) != value and not isinstance(value, tuple):
                self._cached.refuse(f"worker_init_fn changes {name}")


uncounted(CachedWorkerInit.__call__)

"""A dataset wrapper that reads samples from the cache, and loads and verifies the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from cputrain.data.messages import say
from cputrain.data.sample_format import (
    NotEncodableError,
    decode_sample,
    encode_parts,
    encode_sample,
)
from cputrain.data.sample_watch import DRAWS, SampleWatch, attribute_summary, file_state
from cputrain.runtime.patching import uncounted

if TYPE_CHECKING:
    from cputrain.data.sample_store import SampleStore

NUM_VERIFIED = 32
"""The number of first samples of each process that are loaded twice and compared."""

VERIFY_EVERY = 16
"""After the first `NUM_VERIFIED`, one sample in `VERIFY_EVERY` is loaded twice."""

RECHECK_EVERY = 64
"""One cached sample in `RECHECK_EVERY` is loaded again and compared."""


class CachedDataset:
    """The dataset that a process uses instead of the script's, with a cache.

    Args:
        dataset: The script's dataset.
        store: Where samples are cached.
        generators: Random number generators that the dataset holds.
    """

    def __init__(self, dataset: Any, store: SampleStore, generators: list[Any]) -> None:
        self.dataset = dataset
        self._store = store
        self._generators = generators
        self._num_loaded = self._num_read = 0

    def open(self, slot: int, *, is_in_script: bool) -> None:
        """Open the cache in this process.

        Args:
            slot: The number of the process among those of the loader.
            is_in_script: Whether this is the script's process, which may change the dataset.
        """
        self._watch = SampleWatch(self._generators)
        self._is_in_script = is_in_script
        self._attributes = attribute_summary(self.dataset)
        self._store.open(slot)

    def refresh(self) -> None:
        """Find samples that other processes have added to the cache."""
        self._store.refresh()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if self._store.is_disabled or not self._is_cacheable(index):
            return self.dataset[index]
        data = self._store.find(index)
        if data is None:
            return self._load(index)
        files, sample = decode_sample(data)
        if any(file_state(path) != (path, *state) for path, *state in files):
            return self._load(index)
        self._num_read += 1
        if self._num_read % RECHECK_EVERY == 0:
            return self._recheck(index, encode_sample(sample))
        self._store.count_hit()
        return sample

    def _is_cacheable(self, index: Any) -> bool:
        """Return whether the sample at an index may be read from the cache or added to it."""
        if type(index) is not int:  # a sample may depend on the index's type
            self.disable(f"their indices are of type {type(index).__name__}, and not int")
            return False
        if self._is_in_script and attribute_summary(self.dataset) != self._attributes:
            return False  # changed since the epoch began
        return self._store.has_row(index)

    def _load(self, index: int) -> Any:
        """Load a sample, and cache it unless something shows that it is not deterministic."""
        sample, reason, files = self._watch.load(self.dataset, index)
        self._attributes = self._watch.attributes
        if reason:
            culprit = self._watch.find_draw(self.dataset, index) if reason is DRAWS else ""
            self.disable(culprit or reason)
            return sample
        if not self._store.has_room:
            return sample
        try:
            parts = encode_parts((files, sample))
        except NotEncodableError as error:
            self.disable(f"they hold {error}")
            return sample
        self._num_loaded += 1
        if self._num_loaded <= NUM_VERIFIED or self._num_loaded % VERIFY_EVERY == 0:
            with self._watch.preserved_states():
                second, reason, _ = self._watch.load(self.dataset, index)
            if not _is_equal(second, reason, encode_sample(sample)):
                self.disable("loading a sample twice gives different values")
                return sample
        self._store.add(index, parts)
        return sample

    def _recheck(self, index: int, cached: bytes) -> Any:
        """Load a cached sample again, and disable the cache if the two differ."""
        sample, reason, _ = self._watch.load(self.dataset, index)
        if not _is_equal(sample, reason, cached):
            self.disable(reason or "a cached sample differs from the same sample loaded again")
        return sample

    def disable(self, reason: str) -> None:
        """Disable the cache in all processes of the loader, and print the first reason."""
        text = f"the samples of {type(self.dataset).__name__} are not cached: {reason}"
        if self._store.disable(text):
            say(text)


def _is_equal(sample: Any, reason: str, data: bytes) -> bool:
    """Return whether a sample that was loaded without a `reason` for doubt encodes to `data`."""
    try:
        return not reason and encode_sample(sample) == data
    except NotEncodableError:
        return False


uncounted(CachedDataset.__getitem__)
uncounted(CachedDataset._load)
uncounted(CachedDataset._recheck)


class CachedWorkerInit:
    """A `worker_init_fn` that calls the script's with the script's dataset, and opens the cache."""

    def __init__(self, cached: CachedDataset, init_fn: Any) -> None:
        self._cached = cached
        self._init_fn = init_fn

    def __call__(self, worker_id: int) -> None:
        info: Any = get_worker_info()
        dataset = self._cached.dataset
        object.__setattr__(info, "dataset", dataset)  # WorkerInfo refuses a plain assignment
        before = attribute_summary(dataset)
        if self._init_fn is not None:
            self._init_fn(worker_id)
        self._cached.open(worker_id, is_in_script=False)
        for name, value in attribute_summary(dataset).items():
            # a new object, such as an open file, does not show that samples differ
            if before.get(name) != value and not isinstance(value, tuple):
                self._cached.disable(f"worker_init_fn changes {name}")


uncounted(CachedWorkerInit.__call__)

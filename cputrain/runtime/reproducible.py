"""Train with the same bits on any number of cores.

A batch is a number of shards, whatever the cores. Each is computed by one thread, and so is all
that is not in a model, but for kernels whose results do not depend on it: torch rounds differently
for each number of threads. Gradients, statistics of batch norm and losses in a model are added up
in the order of the shards, and random numbers are those of the whole batch, as in `cputrain.Split`.
Those of Datasets are the batch's own.
"""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.kernels.threads import use_cores
from cputrain.reproduce import NUM_SHOWN
from cputrain.reproduce.stamp import stamp_of_models
from cputrain.runtime.patching import Patch
from cputrain.runtime.replicas import Replicas
from cputrain.runtime.reproducible_loading import ReproducibleLoading
from cputrain.runtime.trained_models import TrainedModels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class ReproducibleTraining:
    """Batches in a fixed number of shards, and one thread for all else.

    Args:
        torch: The module.
        num_shards: Number of shards.
    """

    def __init__(self, torch: ModuleType, num_shards: int) -> None:
        self._torch = torch
        self._num_shards = num_shards
        self._num_threads = torch.get_num_threads()
        original = torch.set_num_threads
        original(1)

        def set_num_threads(num_threads: int) -> None:  # noqa: ARG001  (torch's signature)
            original(1)

        self._patch = Patch(torch, "set_num_threads", set_num_threads)
        use_cores(_num_cores)
        self._models = TrainedModels(torch)
        """Their weights have a stamp at the end."""
        self._loading = ReproducibleLoading()
        self._replicas = Replicas(torch, num_shards, is_reproducible=True)

    def describe(self) -> str:
        """Return how batches were sharded, and the stamp of the model's weights."""
        parts = [f"one thread for each of {counted(self._num_shards, 'shard')}"]
        if replicas := self._replicas.describe():
            parts.append(replicas)
        if len(self._models):
            parts.append(f"weights {stamp_of_models(self._models)[:NUM_SHOWN]}")
        return ", ".join(parts)

    def undo(self) -> None:
        self._loading.undo()
        self._replicas.undo()
        self._models.undo()
        use_cores(None)
        self._patch.undo()
        self._torch.set_num_threads(self._num_threads)


def _num_cores() -> int:
    """Return how many cores there are for shards."""
    from cputrain.split.execution.placement import num_cores

    return num_cores()

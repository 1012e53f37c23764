"""Communication hook of DistributedDataParallel: all-reduce in shared memory or by torch.

The first steps use both methods in turns, and the faster one is kept. Whole steps are timed, since
torch's all-reduce overlaps with the backward; all ranks choose the same method.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import distributed

from cputrain.ranks.node_group import connect_node_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch._C._distributed_c10d import GradBucket

    from cputrain.ranks.node_group import NodeGroup

STEPS_PER_TURN = 4
"""Steps that one method is used for before the other one; the first of them is not timed."""

TURNS = ("torch", "shared", "torch", "shared", "torch", "shared")


class GradientAllReduce:
    """All-reduce of one model's gradients, a communication hook.

    Args:
        group: The model's process group.
        is_measured: Whether to time both methods; if not, shared memory is used where possible.
        on_shared_chosen: Called when shared memory is chosen.
    """

    def __init__(
        self, group: Any, *, is_measured: bool, on_shared_chosen: Callable[[], None] = lambda: None
    ) -> None:
        self._group, self._num_ranks = group, group.size()
        self._on_shared_chosen = on_shared_chosen
        self._is_measured = is_measured
        self._node_group: NodeGroup | None = None
        self._step = 0
        self._step_begin = 0.0
        self._times_s: dict[str, list[float]] = {"torch": [], "shared": []}
        self.method: str | None = None
        """The chosen method; empty while both are timed, None before the first gradient."""
        self.user_hook: Callable[[GradBucket], Any] | None = None
        """Hook that the script has registered later; it replaces this one."""

    def __call__(self, bucket: GradBucket) -> Any:
        """Start the all-reduce of a bucket and return its future.

        DistributedDataParallel calls it in the same order in all ranks.
        """
        if self.user_hook is not None:
            return self.user_hook(bucket)
        if self.method is None:  # all ranks call the hook now, as connecting them requires
            self._start_trials(connect_node_group(self._group, _timeout_s(self._group)))
        method = self.method or TURNS[self._step // STEPS_PER_TURN]
        gradients = bucket.buffer()
        if method == "torch" or self._node_group is None:
            work = distributed.all_reduce(
                gradients.div_(self._num_ranks), group=self._group, async_op=True
            )
            future = work.get_future().then(lambda done: done.value()[0])
        else:
            self._node_group.all_reduce(gradients, self._num_ranks)
            future = torch.futures.Future()
            future.set_result(gradients)
        if not self.method and bucket.is_last():
            self._record_step(method)
        return future

    def _start_trials(self, node_group: NodeGroup | None) -> None:
        """Choose the method, or start to time both; a collective call, equal in all ranks.

        Both are timed if any rank measures and none demands deterministic algorithms.
        """
        self._node_group = node_group
        if node_group is None:
            self._set_method("torch")
            return
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        values = torch.tensor([float(self._is_measured), float(is_deterministic)])
        node_group.all_reduce(values)
        self._set_method("" if values[0] and not values[1] else "shared")

    def _set_method(self, method: str) -> None:
        self.method = method
        if method == "shared":
            self._on_shared_chosen()

    def close(self) -> None:
        """Leave the node's group; called when the model is gone."""
        if self._node_group is not None:
            self._node_group.close()

    def _record_step(self, method: str) -> None:
        """Time a step of the trials; after the last one, choose the faster method in all ranks."""
        now = time.perf_counter()
        if self._step % STEPS_PER_TURN:
            self._times_s[method].append(now - self._step_begin)
        self._step_begin = now
        self._step += 1
        if self._step == len(TURNS) * STEPS_PER_TURN:
            values = torch.tensor([median(self._times_s[name]) for name in ("torch", "shared")])
            assert self._node_group is not None
            self._node_group.all_reduce(values)
            self._set_method("shared" if values[1] < values[0] else "torch")


def _timeout_s(group: Any) -> float:
    """Return the timeout of a process group in seconds."""
    backend = group._get_backend(torch.device("cpu"))
    timeout = getattr(getattr(backend, "options", None), "_timeout", distributed.default_pg_timeout)
    return float(timeout.total_seconds())

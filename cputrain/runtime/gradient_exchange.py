"""All-reduce the gradients of ranks on one node in shared memory, where that is faster.

A communication hook is registered before a DistributedDataParallel model's first forward. torch
takes one hook only: a hook that the script has registered before is kept, and one that it registers
later is called by ours.
"""

from __future__ import annotations

import os
import weakref

from cputrain.errors import CputrainError
from cputrain.runtime.patching import Patch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.ranks.gradients import GradientAllReduce


class GradientExchange:
    """The patched methods of DistributedDataParallel, and each model's all-reduce."""

    def __init__(self, torch: ModuleType, *, measured: bool) -> None:
        parallel = torch.nn.parallel.DistributedDataParallel
        self._distributed: Any = torch.distributed
        self._is_measured = measured
        self._reducers: weakref.WeakKeyDictionary[Any, GradientAllReduce | None] = (
            weakref.WeakKeyDictionary()
        )
        self._num_shared = 0
        original_forward, original_register = parallel.forward, parallel.register_comm_hook
        original_join = parallel.join_hook

        def forward(model: Any, *inputs: Any, **kwargs: Any) -> Any:
            if model not in self._reducers and torch.is_grad_enabled():
                self._reducers[model] = self._register(model)
            return original_forward(model, *inputs, **kwargs)

        def register_comm_hook(model: Any, state: Any, hook: Any) -> None:
            reducer = self._reducers.get(model)
            if reducer is None or reducer.user_hook is not None:
                original_register(model, state, hook)
            else:
                reducer.user_hook = lambda bucket: hook(state, bucket)
                self._num_shared -= reducer.method == "shared"

        def join_hook(model: Any, **kwargs: Any) -> Any:
            # ranks that have joined take part by torch's own protocol, which all must use
            if self._reducers.setdefault(model, None) is not None and not kwargs.get(
                "divide_by_initial_world_size", True
            ):
                raise CputrainError(
                    "the model", "has gradients added up in shared memory by all ranks",
                    found="join(divide_by_initial_world_size=False)",
                    do="Say cputrain launch --gradient-exchange torch.",
                )  # fmt: skip
            return original_join(model, **kwargs)

        self._patches = (
            Patch(parallel, "forward", forward),
            Patch(parallel, "register_comm_hook", register_comm_hook),
            Patch(parallel, "join_hook", join_hook),
        )

    def describe(self) -> str:
        return "gradients added up in shared memory" if self._num_shared else ""

    def undo(self) -> None:
        """Restore torch's methods; models that have a hook keep it."""
        for patch in self._patches:
            patch.undo()

    def _register(self, model: Any) -> GradientAllReduce | None:
        """Register an all-reduce for a model and return it; None if torch keeps the model."""
        group = model.process_group
        if (
            getattr(model, "_comm_hooks", True)  # without communication hooks nothing is reduced
            or getattr(model, "_use_python_reducer", False)
            or group.size() < 2
            or group.size() > int(os.environ.get("LOCAL_WORLD_SIZE", group.size()))
            or model.mixed_precision is not None
            or any(param.device.type != "cpu" for param in model.parameters())
            or any(getattr(module, "sparse", False) for module in model.modules())
            or self._distributed.get_backend(group) != "gloo"
        ):
            return None
        from cputrain.ranks.gradients import GradientAllReduce

        reducer = GradientAllReduce(
            group, is_measured=self._is_measured, on_shared_chosen=self._count_shared
        )
        try:  # on the reducer: a hook on the model would be pickled with it
            self._distributed._register_comm_hook(
                model.reducer, None, lambda _, bucket: reducer(bucket)
            )
        except RuntimeError:  # torch has registered a hook of its own
            return None
        weakref.finalize(model, reducer.close)
        return reducer

    def _count_shared(self) -> None:
        self._num_shared += 1

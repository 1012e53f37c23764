"""Has ranks of one node add up their gradients in memory that they share, where that is faster.

Asked before a model's first forward under DistributedDataParallel, as torch takes one hook only,
and the script may have one. One that it registers later is called by ours.
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

POLICY = "gradient_exchange"


class GradientExchange:
    """The class's methods, exchanged, and the models that were met."""

    def __init__(self, torch: ModuleType, *, measured: bool) -> None:
        parallel = torch.nn.parallel.DistributedDataParallel
        self._distributed: Any = torch.distributed
        self._measured = measured
        self._met: weakref.WeakKeyDictionary[Any, GradientAllReduce | None] = (
            weakref.WeakKeyDictionary()
        )
        self._shared = 0
        own_forward, own_register = parallel.forward, parallel.register_comm_hook
        own_join = parallel.join_hook

        def forward(model: Any, *inputs: Any, **named: Any) -> Any:
            if model not in self._met and torch.is_grad_enabled():
                self._met[model] = self._meet(model)
            return own_forward(model, *inputs, **named)

        def register_comm_hook(model: Any, state: Any, hook: Any) -> None:
            ours = self._met.get(model)
            if ours is None or ours.other is not None:
                own_register(model, state, hook)
            else:
                ours.other = lambda bucket: hook(state, bucket)
                self._shared -= ours.way == "shared"

        def join_hook(model: Any, **options: Any) -> Any:
            # ranks that are through take part in torch's own way, and must all know that
            if self._met.setdefault(model, None) is not None and not options.get(
                "divide_by_initial_world_size", True
            ):
                raise CputrainError(
                    "the model", "has gradients added up in shared memory by all ranks",
                    found="join(divide_by_initial_world_size=False)",
                    do="Say cputrain launch --gradient-exchange torch.",
                )  # fmt: skip
            return own_join(model, **options)

        self._exchanged = (
            Patch(parallel, "forward", forward),
            Patch(parallel, "register_comm_hook", register_comm_hook),
            Patch(parallel, "join_hook", join_hook),
        )

    def describe(self) -> str:
        return "gradients added up in shared memory" if self._shared else ""

    def undo(self) -> None:
        """From now on, models keep to torch's; those that were met have a hook."""
        for one in self._exchanged:
            one.undo()

    def _meet(self, model: Any) -> GradientAllReduce | None:
        """What adds up its gradients; None where torch does."""
        group = model.process_group
        if (
            getattr(model, "_comm_hooks", True)  # without them it exchanges nothing
            or getattr(model, "_use_python_reducer", False)
            or group.size() < 2
            or group.size() > int(os.environ.get("LOCAL_WORLD_SIZE", group.size()))
            or model.mixed_precision is not None
            or any(one.device.type != "cpu" for one in model.parameters())
            or any(getattr(one, "sparse", False) for one in model.modules())
            or self._distributed.get_backend(group) != "gloo"
        ):
            return None
        from cputrain.ranks.gradients import GradientAllReduce

        made = GradientAllReduce(group, measured=self._measured, chose=self._count)
        try:  # not as a hook of the model's, which would be saved with it
            self._distributed._register_comm_hook(model.reducer, None, lambda _, one: made(one))
        except RuntimeError:  # one of torch's own is there
            return None
        weakref.finalize(model, made.close)
        return made

    def _count(self) -> None:
        self._shared += 1


def apply(torch: ModuleType, value: object) -> GradientExchange | None:
    """Look at each model, where gradients are not left to torch."""
    if value not in {"auto", "shared"} or not torch.distributed.is_available():
        return None
    return GradientExchange(torch, measured=value == "auto")

"""Switches optimizers to their fused CPU kernels where the script left the choice to torch.

A hook before each step looks at every parameter group: groups that name neither `fused` nor
`foreach`, whose parameters are plain dense float tensors on the CPU, are switched. The choice is
looked at again at each step, since a checkpoint may replace the groups and gradients may turn
sparse. Saved state dictionaries hold what the script chose, so a checkpoint is the same either way.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "fused_optimizer"

MARK = "_cputrain_fused"


class FusedOptimizers:
    """The hook, and what it has switched."""

    def __init__(self, torch: ModuleType) -> None:
        from weakref import WeakSet

        from torch.optim.optimizer import register_optimizer_step_pre_hook

        optim = torch.optim
        # exactly these: a subclass may have a step of its own that knows nothing of the choice
        self._types = frozenset((optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad))
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._dtypes = (torch.float32, torch.float64)
        self._strided = torch.strided
        self._seen: dict[int, tuple[str, int]] = {}
        self._watched: WeakSet[Any] = WeakSet()
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if type(optimizer) not in self._types:
            return
        # a closure makes the gradients after this hook: what they will be cannot be seen yet
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        for group in optimizer.param_groups:
            if group.get(MARK):
                if closure is not None or not self._dense(group):
                    group["fused"] = group.pop(MARK)[0]
            elif closure is None and self._may(group) and self._dense(group):
                self._switch(optimizer, group)

    def _may(self, group: dict[str, Any]) -> bool:
        return (
            group.get("fused") is None
            and group.get("foreach") is None
            and not group.get("differentiable")
            and not group.get("capturable")
            and isinstance(group.get("lr"), float | int)
        )

    def _dense(self, group: dict[str, Any]) -> bool:
        plain, dtypes, strided = self._plain, self._dtypes, self._strided
        for parameter in group["params"]:
            if (
                type(parameter) not in plain
                or parameter.dtype not in dtypes
                or parameter.device.type != "cpu"
            ):
                return False
            gradient = parameter.grad
            if gradient is not None and (
                type(gradient) not in plain
                or gradient.layout is not strided
                or gradient.dtype != parameter.dtype
            ):
                return False
        return True

    def _switch(self, optimizer: Any, group: dict[str, Any]) -> None:
        group[MARK] = (group.get("fused"),)
        group["fused"] = True
        self._seen[id(group["params"])] = (type(optimizer).__name__, len(group["params"]))
        if optimizer not in self._watched:
            self._watched.add(optimizer)
            optimizer.register_state_dict_post_hook(_as_the_script_chose)

    def describe(self) -> str:
        tensors: dict[str, int] = {}
        for name, count in self._seen.values():
            tensors[name] = tensors.get(name, 0) + count
        return ", ".join(
            f"fused {name} ({count} tensor{'s' * (count != 1)})" for name, count in tensors.items()
        )

    def undo(self) -> None:
        self._handle.remove()
        for optimizer in self._watched:
            for group in optimizer.param_groups:
                if MARK in group:
                    group["fused"] = group.pop(MARK)[0]


def _as_the_script_chose(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    groups = []
    for group in state["param_groups"]:
        if MARK in group:
            group = {**group, "fused": group[MARK][0]}
            del group[MARK]
        groups.append(group)
    return {**state, "param_groups": groups}


def apply(torch: ModuleType, value: object) -> FusedOptimizers | None:
    """Start looking at optimizers."""
    return FusedOptimizers(torch) if value else None

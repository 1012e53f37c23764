"""Sees every operator of a few steps: its time, its tensors' forms, what it computes and moves."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

SAMPLE = 1 << 14
"""Elements of a result in which tiny numbers are looked for."""


class Operators:
    """Those that were seen, while it is looking."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.phase = "forward"
        """Of a step: "forward", "backward" or "optimizer"."""
        self._found: dict[Any, dict[str, Any]] = {}
        self._kinds: dict[str, str] = {}
        self._line: list[tuple[int, float, float]] = []
        self._began = 0.0
        self._tiny = self._sampled = 0
        self._mode: Any = None
        self._tracker: Any = None
        self._hook: Any = None

    def begin(self) -> None:
        """Look at every operator from now on."""
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.module_tracker import ModuleTracker

        seen = self._seen
        of_torch: Any = TorchDispatchMode

        class Looking(of_torch):  # type: ignore[misc]
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                given = kwargs or {}
                begin = time.perf_counter()
                found = func(*args, **given)
                seen(func, args, given, found, begin, time.perf_counter() - begin)
                return found

        self._tracker = ModuleTracker()
        self._tracker.__enter__()
        self._hook = self._torch.nn.modules.module.register_module_forward_pre_hook(self._named)
        self._mode = Looking()
        self._mode.__enter__()
        self.new_step()

    def new_step(self) -> None:
        """What comes now belongs to another step; the line is that of the last."""
        self._line, self._began = [], time.perf_counter()

    def stop(self) -> None:
        """No more."""
        self._mode.__exit__(None, None, None)
        self._hook.remove()
        self._tracker.__exit__(None, None, None)

    def _named(self, module: Any, _: object) -> None:
        whole = type(module).__name__
        if whole in self._kinds:
            return
        for name, one in module.named_modules():
            self._kinds.setdefault(f"{whole}.{name}" if name else whole, type(one).__name__)

    def _seen(
        self, func: Any, args: Any, kwargs: Any, found: Any, begin: float, seconds: float
    ) -> None:
        tensor = self._torch.Tensor
        given = _tensors(tensor, (args, list(kwargs.values())))
        made = _tensors(tensor, (found,))
        if any(not one.is_cpu for one in (*given, *made)):
            return
        layer = max((one for one in self._tracker.parents if one != "Global"), key=len, default="")
        shapes = tuple(tuple(one.shape) for one in given[:4])
        dtype = str(given[0].dtype if given else made[0].dtype if made else "").replace(
            "torch.", ""
        )
        key = (str(func._schema.name), shapes, dtype, self.phase, layer)
        one = self._found.get(key)
        if one is None:
            one = self._found[key] = {
                "number": len(self._found), "name": key[0].partition("::")[2], "shapes": shapes,
                "dtype": dtype, "phase": self.phase, "layer": layer, "times": [],
                "flops": self._flops(func, args, kwargs, found),
                "bytes": _moved(func, args, given, made),
                "numbers": _most_numbers(tensor, (*args, *kwargs.values(), made)),
                "channels_last": _is_channels_last(given),
                "elementwise": self._torch.Tag.pointwise in func.tags,
            }  # fmt: skip
        one["times"].append(seconds)
        self._line.append((one["number"], begin - self._began, seconds))
        for result in made[:1]:
            self._look_for_tiny(result)

    def _flops(self, func: Any, args: Any, kwargs: Any, found: Any) -> int:
        from torch.utils.flop_counter import flop_registry

        count = flop_registry.get(func._overloadpacket)
        return 0 if count is None else int(count(*args, **kwargs, out_val=found))

    def _look_for_tiny(self, result: Any) -> None:
        torch = self._torch
        if result.dtype is not torch.float32 or not result.is_contiguous() or not result.numel():
            return
        with torch._C._DisableTorchDispatch():
            part = result.detach().view(-1)[:SAMPLE].view(torch.int32)
            size = part & 0x7FFFFFFF
            self._tiny += int(((size > 0) & (size < 0x00800000)).sum())
        self._sampled += part.numel()

    def seen(self) -> dict[str, Any]:
        """All of them, and the kinds of layers by name."""
        return {
            "operators": [_summed(one) for one in self._found.values()], "kinds": self._kinds,
            "line": self._line,
            "tiny": self._tiny / self._sampled if self._sampled else 0.0,
        }  # fmt: skip


def _summed(one: dict[str, Any]) -> dict[str, Any]:
    """What all calls take, if each takes what one in the middle does: now and then another program
    is let in."""
    times = sorted(one["times"])
    rest = {name: value for name, value in one.items() if name not in {"times", "number"}}
    return {**rest, "calls": len(times), "seconds": times[len(times) // 2] * len(times)}


def _tensors(kind: Any, values: Any) -> list[Any]:
    found = []
    for one in values:
        if isinstance(one, kind):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += _tensors(kind, one)
    return found


def _moved(func: Any, args: Any, given: list[Any], made: list[Any]) -> int:
    """Bytes to and from memory, if nothing is in a cache. A view moves none."""
    returns = func._schema.returns
    if returns and returns[0].alias_info is not None and not returns[0].alias_info.is_write:
        return 0
    each: dict[int, int] = {one.data_ptr(): one.numel() * one.element_size() for one in given}
    if not made and args and isinstance(args[0], (list, tuple)):
        made = list(args[0])  # all of a list, in place
    each[-1] = sum(one.numel() * one.element_size() for one in made)
    return sum(each.values())


def _most_numbers(kind: Any, values: Any) -> int:
    """Those of the largest tensor, or list of tensors, among what an operator takes and makes."""
    return max(sum(int(one.numel()) for one in _tensors(kind, (each,))) for each in values)


def _is_channels_last(given: list[Any]) -> bool:
    """Whether images come with their channels last."""
    for one in given[:1]:
        if one.dim() == 4 and one.size(1) > 1:
            return bool(one.stride(1) == 1)
    return False

"""Switches optimizers to their fused CPU kernels where the script left the choice to torch.

An optimizer's step ends in a function of torch.optim that is given every tensor it is about to
use, and picks a kernel. The choice is made there, call by call: parameter groups, saved state
dictionaries, pickles and what hooks see stay as the script made them.

The kernels walk memory from a tensor's first element to its last and look at no stride, so tensors
that do not lie alike, or with gaps, would be updated wrongly and in silence.
"""

from __future__ import annotations

import sys

from cputrain.runtime.touched_rows import TouchedRows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

POLICY = "fused_optimizer"

FUNCTIONS = {"adam": "Adam", "sgd": "SGD", "adagrad": "Adagrad"}
"""Each in the module of torch.optim of the same name; AdamW's step is Adam's."""

ENOUGH = 512
"""Elements of a tensor for each thread. The kernels wake every thread for every tensor: cheap for
a few threads, dear for many. A small network, fused on 64 threads, trained at 0.96 of python's
speed; that fusing was the cause is likely, and was not measured by itself."""

FEW_THREADS = 4
"""On two threads fusing was no slower, within the spread, for any size that was measured."""

UNFIT = ("differentiable", "capturable", "has_complex", "has_sparse_grad")
"""Arguments that, when true, rule the kernels out."""


class FusedOptimizers:
    """The functions, exchanged, and what they were seen to fuse."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self._dtypes = (torch.float32, torch.float64)
        self._strided = torch.strided
        self._orders = (torch.channels_last, torch.channels_last_3d)
        self._fused: dict[tuple[str, int], int] = {}
        self._rows = TouchedRows(torch)
        self._exchanged: list[tuple[ModuleType, str, Any, Any]] = []
        for name in FUNCTIONS:
            module = sys.modules[f"torch.optim.{name}"]
            own = getattr(module, name)
            ours = self._choosing(name, own)
            setattr(module, name, ours)
            self._exchanged.append((module, name, own, ours))

    def _choosing(self, name: str, update: Callable[..., None]) -> Callable[..., None]:
        from functools import wraps

        @wraps(update)
        def choose(*lists: Any, **options: Any) -> None:
            # a compiler fuses by itself, and better when it sees each operation
            if (
                self._torch.compiler.is_compiling()
                or not self._may(options)
                or not all(type(found) is list for found in lists)
            ):
                update(*lists, **options)
                return
            first = id(lists[0][0]) if lists[0] else 0
            narrow, put_back = self._rows.narrowed(name, list(lists), options)
            params, grads, *states = narrow
            if self._worth_it(params) and self._fit(params, grads, *_without_steps(name, states)):
                options["fused"] = True
                shown = "AdamW" if options.get("decoupled_weight_decay") else FUNCTIONS[name]
                self._fused[shown, first] = len(params)
            update(*narrow, **options)
            put_back()

        return choose

    def _may(self, options: dict[str, Any]) -> bool:
        return (
            options.get("fused", True) is None
            and options.get("foreach") is None
            and options.get("grad_scale") is None
            and not any(options.get(name) for name in UNFIT)
            and not self._torch.is_grad_enabled()  # on in the step of a differentiable SGD
            and all(
                isinstance(options.get(name, 0), (float, int)) for name in ("lr", "beta1", "beta2")
            )
        )

    def _worth_it(self, params: list[Any]) -> bool:
        threads = self._torch.get_num_threads()
        if threads <= FEW_THREADS:
            return True
        total = int(sum(tensor.numel() for tensor in params))
        return bool(total >= ENOUGH * threads * len(params))

    def _fit(self, params: list[Any], *others: list[Any]) -> bool:
        # SGD's buffers are None at their first step: the kernel takes none of them, or all
        lists = [params, *(found for found in others if any(one is not None for one in found))]
        return (
            len(lists) > 1
            and all(len(found) == len(params) for found in lists)
            and all(self._alike(tensors) for tensors in zip(*lists, strict=True))
        )

    def _alike(self, tensors: Sequence[Any]) -> bool:
        first = tensors[0]
        plain, kind, size = self._plain, first.dtype, first.numel()
        if kind not in self._dtypes:
            return False
        for tensor in tensors:
            if (
                type(tensor) not in plain
                or not tensor.is_cpu
                or tensor.layout is not self._strided
                or tensor.dtype is not kind
                or tensor.numel() != size
            ):
                return False
        return all(tensor.is_contiguous() for tensor in tensors) or any(
            all(tensor.is_contiguous(memory_format=order) for tensor in tensors)
            for order in self._orders
        )

    def describe(self) -> str:
        tensors: dict[str, int] = {}
        for (name, _), count in self._fused.items():
            tensors[name] = tensors.get(name, 0) + count
        says = [f"fused {name} ({_tensors(count)})" for name, count in tensors.items()]
        tables = len(self._rows.tables)
        if tables:
            says.append(f"updates of touched rows only ({_tensors(tables)})")
        return ", ".join(says)

    def undo(self) -> None:
        for module, name, own, ours in self._exchanged:
            if getattr(module, name) is ours:
                setattr(module, name, own)


def _tensors(count: int) -> str:
    return f"{count} tensor{'s' * (count != 1)}"


def _without_steps(name: str, states: Sequence[list[Any]]) -> Sequence[list[Any]]:
    """The states that lie beside the parameters: Adam and Adagrad put their step counts last."""
    return states if name == "sgd" else states[:-1]


def apply(torch: ModuleType, value: object) -> FusedOptimizers | None:
    """Start choosing kernels."""
    return FusedOptimizers(torch) if value else None

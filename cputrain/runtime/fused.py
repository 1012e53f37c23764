"""Runs fused CPU kernels in optimizers where the script left the choice to torch.

A step of Adam, AdamW, SGD or Adagrad ends in a private function of torch.optim that updates one
tensor after the other by a dozen operators. That function is patched, and the one before it that
chooses among torch's implementations; it is asked only where the script chose none. All that is
public stays torch's own: functions, signatures, parameter groups, state dictionaries, pickles.

Whatever would tell the kernel from the function, but for the clock, is left to the function: checks
are in `plain_tensors`, bounds on options in `fused_kernels`. Versions rise as the function would
raise them.
"""

from __future__ import annotations

import threading
from functools import wraps

from cputrain.runtime.fused_kernels import KERNELS, LARGEST_STEP
from cputrain.runtime.kernel_threads import GRAIN_SIZE, KernelThreads
from cputrain.runtime.plain_tensors import PlainTensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from cputrain.runtime.fused_kernels import FusedKernel, Options

    Column = list[Any]

POLICY = "fused_optimizer"

CHOOSER = "_default_to_fused_or_foreach"
"""The function of torch.optim that is asked where a script chose no implementation."""

MIN_SMALL_TENSORS = 8
"""Small tensors beside large ones, from which on a kernel call of their own can be faster."""

MIN_SMALL_TENSORS_TIMES_THREADS = 64
"""What their number times the number of threads must reach as well: docs/benchmarks."""


class FunctionPatch:
    """A function of ours in the place of a module's."""

    def __init__(self, module: ModuleType, name: str, replacement: Callable[..., Any]) -> None:
        self.module, self.name, self.replacement = module, name, replacement
        self.original = getattr(module, name)
        # torch.jit.script compiles the original
        replacement.__prepare_scriptable__ = lambda: self.original  # type: ignore[attr-defined]

    def apply(self) -> None:
        """Put the replacement there."""
        setattr(self.module, self.name, self.replacement)

    def undo(self) -> None:
        """Restore the original, unless the script has put its own function there since."""
        if getattr(self.module, self.name) is self.replacement:
            setattr(self.module, self.name, self.original)


class FusedOptimizers:
    """The patched functions, and the tensors whose updates were fused."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tensors = PlainTensors(torch)
        self._threads = KernelThreads(torch)
        self._open = threading.local()
        self._num_fused: dict[tuple[str, int], int] = {}
        self.patches: list[FunctionPatch] = []
        for kind in KERNELS:
            kernel = kind(torch)
            self.patches.append(FunctionPatch(kernel.module, CHOOSER, self._chooser(kernel)))
            self.patches.append(
                FunctionPatch(kernel.module, kernel.function_name, self._updater(kernel))
            )
        self.redo()

    def _chooser(self, kernel: FusedKernel) -> Callable[..., tuple[bool, bool]]:
        """Note that the choice is open for a list of parameters, if it is long or large enough."""
        torch, note, types = self._torch, self._open, self._tensors.types
        original = getattr(kernel.module, CHOOSER)
        is_compiling, num_function_modes = (
            torch.compiler.is_compiling, torch._C._len_torch_function_stack
        )  # fmt: skip
        numel = torch.Tensor.numel
        enough_tensors, enough_elements = kernel.enough_tensors, kernel.enough_elements
        on_cpu: tuple[bool, bool] = original([torch.empty(0, device="cpu")], False, use_fused=False)

        @wraps(original)
        def choose(params: Any, *args: Any, **kwargs: Any) -> tuple[bool, bool]:
            # a compiler fuses by itself, and better when it sees each operator
            if is_compiling() or type(params) is not list:
                return original(params, *args, **kwargs)  # type: ignore[no-any-return]
            # modes and subclasses of the script's would notice that a tensor is asked for its size
            if (
                not params
                or num_function_modes()
                or type(params[0]) not in types
                or not params[0].is_cpu
            ):
                choice: tuple[bool, bool] = original(params, *args, **kwargs)
                note.params = id(params) if choice == (False, False) else None
                return choice
            is_worth_checks = len(params) >= enough_tensors or (
                types.issuperset(map(type, params)) and sum(map(numel, params)) >= enough_elements
            )
            note.params = id(params) if is_worth_checks else None
            return on_cpu  # the first one decides; to ask again would cost more than all of this

        return choose

    def _updater(self, kernel: FusedKernel) -> Callable[..., None]:
        """Run the kernel for the list that the choice is open for, if it is equivalent."""
        is_compiling = self._torch.compiler.is_compiling
        note, function = self._open, kernel.function

        @wraps(function)
        def update(*lists: Any, **options: Any) -> None:
            if is_compiling() or not lists or getattr(note, "params", None) != id(lists[0]):
                function(*lists, **options)
                return
            note.params = None
            if not self._fuse(kernel, lists, options):
                function(*lists, **options)

        return update

    def _fuse(self, kernel: FusedKernel, lists: Sequence[Any], options: Options) -> bool:
        """Update by the kernel, and return True; or return False, and leave everything as it is."""
        if (
            not kernel.accepts(options)
            or len(lists) != kernel.num_lists
            or not all(type(tensors) is list for tensors in lists)
            or not lists[0]
            or not self._tensors.is_plain_context()
        ):
            return False
        params = lists[0]
        num_params = len(params)
        columns = kernel.columns(lists, options)
        steps = lists[-1] if kernel.has_steps else []
        if any(len(column) != num_params for column in columns) or (
            kernel.has_steps and len(steps) != num_params
        ):
            return False
        if not self._tensors.are_matching(columns):
            return False
        numels = self._tensors.numels(params)
        if (
            not kernel.accepts_sizes(numels, self._tensors.itemsize(params[0]), options)
            or (steps and not self._tensors.are_step_counts(steps, LARGEST_STEP))
            or not self._tensors.are_disjoint(columns, numels, steps)
        ):
            return False
        increments = kernel.version_increments(columns, steps, options)
        if increments is None:
            return False
        groups = self._groups(columns, steps, numels)
        if groups is None:
            return False
        raised = [
            tensor
            for tensors, count in zip((*columns, steps), increments, strict=False)
            for tensor in tensors * count
        ]
        # first, so that an interrupt leaves no tensor that has changed unnoticed
        self._torch._C._increment_version(raised)
        for is_small, group_columns, group_steps in groups:
            if is_small:
                with self._threads.single():
                    kernel.run(group_columns, group_steps, options)
            else:
                kernel.run(group_columns, group_steps, options)
        self._num_fused[kernel.title(options), id(params[0])] = num_params
        return True

    def _groups(
        self, columns: list[Column], steps: Column, numels: list[int]
    ) -> list[tuple[bool, list[Column], Column]] | None:
        """Return tensors to update on one thread, and those for all threads; None for neither."""
        num_threads = self._torch.get_num_threads()
        if num_threads == 1:
            return [(False, columns, steps)]
        small = [count <= GRAIN_SIZE for count in numels]
        num_small = sum(small)
        # few small ones beside large ones, for which threads are woken anyway, are not worth a call
        if not num_small or (
            num_small < len(small)
            and (
                num_small < MIN_SMALL_TENSORS
                or num_small * num_threads < MIN_SMALL_TENSORS_TIMES_THREADS
            )
        ):
            return [(False, columns, steps)]
        if not self._threads.can_limit():
            return None
        if num_small == len(small):
            return [(True, columns, steps)]
        groups = []
        for is_small in (True, False):
            places = [place for place, value in enumerate(small) if value is is_small]
            groups.append(
                (
                    is_small,
                    [[column[place] for place in places] for column in columns],
                    [steps[place] for place in places] if steps else [],
                )
            )
        return groups

    def describe(self) -> str:
        """Return how many tensors were fused, by optimizer."""
        totals: dict[str, int] = {}
        for (title, _), count in self._num_fused.items():
            totals[title] = totals.get(title, 0) + count
        return ", ".join(
            f"fused {title} ({count} tensor{'s' * (count != 1)})" for title, count in totals.items()
        )

    def redo(self) -> None:
        """Patch torch's functions again, after `undo`."""
        for patch in self.patches:
            patch.apply()

    def undo(self) -> None:
        """Restore torch's functions."""
        for patch in self.patches:
            patch.undo()


def apply(torch: ModuleType, value: object) -> FusedOptimizers | None:
    """Start choosing kernels."""
    return FusedOptimizers(torch) if value else None

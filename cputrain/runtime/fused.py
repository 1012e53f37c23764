"""Run torch's fused CPU kernels in optimizers for which the script chose no implementation.

A step of Adam, AdamW, SGD or Adagrad ends in a private function of torch.optim that updates one
tensor after the other by a dozen operators. This function is patched, and the private function that
chooses among torch's implementations, which torch calls only if the script chose none. Everything
public stays torch's: functions, signatures, parameter groups, state dictionaries, pickles.

Calls for which the kernel's effects would differ from the function's are left to the function:
`plain_tensors` has the checks, `fused_kernels` the bounds on options. Version counters rise as the
function would raise them.
"""

from __future__ import annotations

import threading
from functools import wraps

from cputrain.counting import counted
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

CHOICE_FUNCTION = "_default_to_fused_or_foreach"
"""Name of torch.optim's function that chooses an implementation if the script chose none."""

MIN_SMALL_TENSORS = 8
"""Number of small tensors, beside large ones, from which a separate kernel call can be faster."""

MIN_SMALL_TENSORS_TIMES_THREADS = 64
"""Minimum of that number times the number of threads; measured in docs/benchmarks."""


class FunctionPatch:
    """A replacement of a module's function."""

    def __init__(self, module: ModuleType, name: str, replacement: Callable[..., Any]) -> None:
        self.module, self.name, self.replacement = module, name, replacement
        self.original = getattr(module, name)
        # torch.jit.script compiles the original
        replacement.__prepare_scriptable__ = lambda: self.original  # type: ignore[attr-defined]

    def apply(self) -> None:
        """Install the replacement."""
        setattr(self.module, self.name, self.replacement)

    def undo(self) -> None:
        """Restore the original, unless the script has replaced the function since."""
        if getattr(self.module, self.name) is self.replacement:
            setattr(self.module, self.name, self.original)


class FusedOptimizers:
    """The patches of torch.optim, and counts of the tensors that fused kernels updated."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._tensors = PlainTensors(torch)
        self._threads = KernelThreads(torch)
        self._undecided = threading.local()
        self._num_fused: dict[tuple[str, int], int] = {}
        self.patches: list[FunctionPatch] = []
        for kernel_class in KERNELS:
            kernel = kernel_class(torch)
            self.patches.append(
                FunctionPatch(kernel.module, CHOICE_FUNCTION, self._make_choice_patch(kernel))
            )
            self.patches.append(
                FunctionPatch(kernel.module, kernel.function_name, self._make_update_patch(kernel))
            )
        self.redo()

    def _make_choice_patch(self, kernel: FusedKernel) -> Callable[..., tuple[bool, bool]]:
        """Return a patch of the choice function that records for which list torch would choose.

        The list is recorded only if it is long or large enough for a fused kernel to pay off.
        """
        torch, undecided, types = self._torch, self._undecided, self._tensors.types
        original = getattr(kernel.module, CHOICE_FUNCTION)
        is_compiling, num_function_modes = (
            torch.compiler.is_compiling, torch._C._len_torch_function_stack
        )  # fmt: skip
        numel = torch.Tensor.numel
        enough_tensors, enough_elements = kernel.enough_tensors, kernel.enough_elements
        on_cpu: tuple[bool, bool] = original([torch.empty(0, device="cpu")], False, use_fused=False)

        @wraps(original)
        def choose(params: Any, *args: Any, **kwargs: Any) -> tuple[bool, bool]:
            # torch.compile fuses the operators better itself
            if is_compiling() or type(params) is not list:
                return original(params, *args, **kwargs)  # type: ignore[no-any-return]
            # function modes and subclasses of the script would see that the size is read
            if (
                not params
                or num_function_modes()
                or type(params[0]) not in types
                or not params[0].is_cpu
            ):
                choice: tuple[bool, bool] = original(params, *args, **kwargs)
                undecided.params = id(params) if choice == (False, False) else None
                return choice
            is_worth_checks = len(params) >= enough_tensors or (
                types.issuperset(map(type, params)) and sum(map(numel, params)) >= enough_elements
            )
            undecided.params = id(params) if is_worth_checks else None
            return on_cpu  # as the first parameter decides, without the cost of a call

        return choose

    def _make_update_patch(self, kernel: FusedKernel) -> Callable[..., None]:
        """Return a patch of the update function that runs the kernel for the recorded list.

        It calls the original function unless the kernel has the same effects.
        """
        is_compiling = self._torch.compiler.is_compiling
        undecided, function = self._undecided, kernel.function

        @wraps(function)
        def update(*lists: Any, **options: Any) -> None:
            if is_compiling() or not lists or getattr(undecided, "params", None) != id(lists[0]):
                function(*lists, **options)
                return
            undecided.params = None
            if not self._fuse(kernel, lists, options):
                function(*lists, **options)

        return update

    def _fuse(self, kernel: FusedKernel, lists: Sequence[Any], options: Options) -> bool:
        """Update the tensors by the kernel; change nothing and return False if not equivalent."""
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
        to_increment = [
            tensor
            for tensors, count in zip((*columns, steps), increments, strict=False)
            for tensor in tensors * count
        ]
        # before the update, so that an interrupt leaves no changed tensor with its old version
        self._torch._C._increment_version(to_increment)
        for is_small, group_columns, group_steps in groups:
            if is_small:
                with self._threads.single():
                    kernel.run(group_columns, group_steps, options)
            else:
                # threads take whole cache lines of a tensor, so that their number changes no bit
                with self._threads.exact():
                    kernel.run(group_columns, group_steps, options)
        self._num_fused[kernel.title(options), id(params[0])] = num_params
        return True

    def _groups(
        self, columns: list[Column], steps: Column, numels: list[int]
    ) -> list[tuple[bool, list[Column], Column]] | None:
        """Group tensors into (is_small, columns, steps): a single thread updates small tensors.

        Return None if a single thread is needed and the thread count cannot be limited.
        """
        num_threads = self._threads.num_exact()
        if num_threads == 1:
            return [(False, columns, steps)]
        small = [count <= GRAIN_SIZE for count in numels]
        num_small = sum(small)
        # a few small tensors are updated with the large ones, which wake the threads anyway
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
            indices = [index for index, value in enumerate(small) if value is is_small]
            groups.append(
                (
                    is_small,
                    [[column[index] for index in indices] for column in columns],
                    [steps[index] for index in indices] if steps else [],
                )
            )
        return groups

    def describe(self) -> str:
        """Return the number of fused tensors by optimizer, for the summary of a launch."""
        totals: dict[str, int] = {}
        for (title, _), count in self._num_fused.items():
            totals[title] = totals.get(title, 0) + count
        return ", ".join(
            f"fused {title} ({counted(count, 'tensor')})" for title, count in totals.items()
        )

    def redo(self) -> None:
        """Patch torch's functions, also again after `undo`."""
        for patch in self.patches:
            patch.apply()

    def undo(self) -> None:
        """Restore torch's functions."""
        for patch in self.patches:
            patch.undo()

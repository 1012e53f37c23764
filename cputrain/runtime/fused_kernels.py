"""Torch's fused CPU kernels, each with the single-tensor function of torch.optim that it replaces.

A kernel's results equal the function's up to rounding, infinities and NaN included, only within
bounds on its options, and the kernel raises no version counter. How the function raises versions
is not assumed but observed: for each combination of options, both run once on small tensors of
ordinary and extreme numbers. If their results differ, the kernel is not used.
"""

from __future__ import annotations

import math
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any, ClassVar

    Column = list[Any]
    Options = Mapping[str, Any]
    Increments = tuple[int, ...]

LARGE = 1e6
"""Upper bound of options that have no natural bound.

Scalars that overflow float32 raise in torch's operators, but become infinite in the kernels.
"""

BELOW_ONE = math.nextafter(1.0, 0.0)
"""Upper bound of options that must be below 1."""

LARGEST_STEP = 1 << 23
"""Largest accepted step count; float32 counts exactly up to twice this number."""

EXTREME = (
    0.0, -0.0, 1e-45, -1e-45, 1e-30, -1e-20, 1e19, -2e19, 3e38, -3e38,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
"""Numbers for which mathematically equal formulas may give different results."""

TOLERANCE = 1e-5
"""Maximum difference of ordinary results, relative to the largest of them."""


class FusedKernel:
    """A fused kernel: base class of the kernels of all optimizers."""

    name: ClassVar[str]
    """Name of the optimizer's module in torch.optim."""

    num_lists: ClassVar[int]
    """Number of lists of tensors that the single-tensor function takes."""

    has_steps: ClassVar[bool]
    """Whether the last list holds step counts."""

    max_values: ClassVar[dict[str, float]]
    """Largest accepted value of each option that is a number."""

    flags: ClassVar[tuple[str, ...]]
    """Names of the options that must be True or False."""

    absent: ClassVar[tuple[str, ...]]
    """Names of the options that must be False or None."""

    enough_tensors: ClassVar[int]
    """Number of tensors from which the kernel is faster for any size: see docs/benchmarks."""

    enough_elements: ClassVar[int]
    """Number of elements from which the kernel is faster for any number of tensors."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.module = sys.modules[f"torch.optim.{self.name}"]
        self.function_name = f"_single_tensor_{self.name}"
        self.function: Callable[..., None] = getattr(self.module, self.function_name)
        self._names = (*self.max_values, *self.flags)
        self._num_options = len(self._names) + len(self.absent)
        self._number_types = {float, int}
        numpy: Any = sys.modules.get("numpy")  # (None if a script hides NumPy)
        if numpy is not None:  # learning-rate schedules computed with NumPy return its floats
            self._number_types.add(numpy.float64)
        self._step_increment = torch.tensor(1.0, dtype=torch.float32, device="cpu")
        self._increments: dict[tuple[Any, ...], Increments | None] = {}

    def title(self, options: Options) -> str:
        """Return the optimizer's name for messages."""
        raise NotImplementedError

    def columns(self, lists: Sequence[Column], options: Options) -> list[Column]:
        """Return the lists that these options use: parameters, gradients, states (no steps)."""
        raise NotImplementedError

    def call(self, columns: Sequence[Column], steps: Column, options: Options) -> None:
        """Run the kernel on lists of `columns`, with the steps already counted."""
        raise NotImplementedError

    def accepts(self, options: Options) -> bool:
        """Return whether the kernel is equivalent to the function for these options."""
        if len(options) != self._num_options:  # another version of torch may have more
            return False
        get: Any = options.get
        for name in self.absent:
            value = get(name, 0)
            if value is not None and value is not False:
                return False
        for name in self.flags:
            if type(get(name)) is not bool:
                return False
        for name, bound in self.max_values.items():
            value = get(name)
            if type(value) not in self._number_types or not 0 <= value <= bound:
                return False
        return True

    def accepts_sizes(self, numels: Sequence[int], itemsize: int, options: Options) -> bool:  # noqa: ARG002
        """Return whether the kernel is equivalent to the function for tensors of these sizes."""
        return True

    def run(self, columns: Sequence[Column], steps: Column, options: Options) -> None:
        """Count the steps and run the kernel, without correcting version counters."""
        if steps:
            self._torch._foreach_add_(steps, self._step_increment, alpha=1.0)
        self.call(columns, steps, options)

    def version_increments(
        self, columns: Sequence[Column], steps: Column, options: Options
    ) -> Increments | None:
        """Return how much `run` raises versions too little, for each column and then for the steps.

        Return None if the kernel must not be used.
        """
        dtypes = (columns[0][0].dtype, steps[0].dtype if steps else None)
        key = (dtypes, *(bool(options[name]) for name in self._names))
        if key not in self._increments:
            self._increments[key] = self._observe(dtypes, len(columns), options)
        return self._increments[key]

    def _observe(self, dtypes: Any, num_columns: int, options: Options) -> Increments | None:
        """Run kernel and function on samples; return the difference of versions, or None."""
        results = []
        for use_kernel in (False, True):
            columns = [[column] for column in self._samples(dtypes[0], num_columns)]
            steps = [self._torch.ones((), dtype=dtypes[1], device="cpu")] if dtypes[1] else []
            if use_kernel:
                self.run(columns, steps, options)
            else:
                self.function(*self._lists(columns, steps), **options)
            results.append([*(column[0] for column in columns), *steps])
        expected, actual = results
        if not all(map(self._agree, expected, actual)):
            return None
        versions = [
            (kernel_result._version, function_result._version)
            for function_result, kernel_result in zip(expected, actual, strict=True)
        ]
        missing = tuple(
            expected_version - actual_version for actual_version, expected_version in versions
        )
        return None if min(missing) < 0 else missing

    def _samples(self, dtype: Any, num_columns: int) -> list[Any]:
        """Return a tensor for each column: ordinary numbers, then extreme numbers in turns."""
        torch, size = self._torch, 64
        samples = []
        for column in range(num_columns):
            ordinary = [math.sin(1.0 + index + 7.0 * column) for index in range(size)]
            extreme = [
                EXTREME[(index * (column + 1) + column) % len(EXTREME)] for index in range(3 * size)
            ]
            values = torch.tensor(ordinary + extreme, dtype=torch.float64, device="cpu").to(dtype)
            samples.append(values.abs() if self._is_squared(column) else values)
        return [sample.clone() for sample in samples]

    def _is_squared(self, column: int) -> bool:  # noqa: ARG002
        return False

    def _agree(self, expected: Any, actual: Any) -> bool:
        torch = self._torch
        if not expected.dim():
            return bool(torch.equal(expected, actual))
        ordinary = slice(0, 64)
        difference = (expected - actual)[ordinary].abs().max()
        return (
            bool(difference <= TOLERANCE * expected[ordinary].abs().max())
            and torch.equal(expected.isnan(), actual.isnan())
            and torch.equal(expected.isinf(), actual.isinf())
            and torch.equal(expected > 0, actual > 0)
        )

    def _lists(self, columns: list[Column], steps: Column) -> list[Column]:
        """Return the single-tensor function's arguments, with empty lists for unused states."""
        missing = self.num_lists - len(columns) - self.has_steps
        lists = [*columns, *([] for _ in range(missing))]
        return [*lists, steps] if self.has_steps else lists


class AdamKernel(FusedKernel):
    """Adam, and AdamW, whose weight decay is decoupled."""

    name = "adam"
    num_lists = 6
    has_steps = True
    max_values: ClassVar = {
        "lr": LARGE, "beta1": BELOW_ONE, "beta2": BELOW_ONE, "weight_decay": LARGE, "eps": LARGE
    }  # fmt: skip
    flags = ("amsgrad", "maximize", "decoupled_weight_decay")
    absent = ("has_complex", "capturable", "differentiable", "grad_scale", "found_inf")
    enough_tensors = 3
    enough_elements = 1 << 15

    def title(self, options: Options) -> str:
        """Return Adam or AdamW."""
        return "AdamW" if options["decoupled_weight_decay"] else "Adam"

    def accepts(self, options: Options) -> bool:
        """Return whether the kernel is equivalent; weight decay must not flip signs."""
        return super().accepts(options) and (
            not options["decoupled_weight_decay"] or options["lr"] * options["weight_decay"] <= 1
        )

    def accepts_sizes(self, numels: Sequence[int], itemsize: int, options: Options) -> bool:
        """Return whether the kernel is equivalent for tensors of these sizes.

        In the last elements of a tensor that do not fill a cache line, the kernel's maximum of
        second moments drops NaN.
        """
        return not options["amsgrad"] or not any(count * itemsize % 64 for count in numels)

    def columns(self, lists: Sequence[Column], options: Options) -> list[Column]:
        """Return parameters, gradients, first and second moments, and their maximum if used."""
        return list(lists[: 5 if options["amsgrad"] else 4])

    def _is_squared(self, column: int) -> bool:
        return column > 2

    def call(self, columns: Sequence[Column], steps: Column, options: Options) -> None:
        """Run the kernel of Adam or AdamW."""
        torch = self._torch
        kernel = torch._fused_adamw_ if options["decoupled_weight_decay"] else torch._fused_adam_
        maxima = columns[4] if options["amsgrad"] else []
        kernel(
            *columns[:4],
            maxima,
            steps,
            lr=float(options["lr"]),
            beta1=float(options["beta1"]),
            beta2=float(options["beta2"]),
            weight_decay=float(options["weight_decay"]),
            eps=float(options["eps"]),
            amsgrad=options["amsgrad"],
            maximize=options["maximize"],
        )


class SGDKernel(FusedKernel):
    """SGD with momentum, weight decay or maximize."""

    name = "sgd"
    num_lists = 3
    has_steps = False
    max_values: ClassVar = {"lr": LARGE, "momentum": 1.0, "weight_decay": LARGE, "dampening": 1.0}
    flags = ("nesterov", "maximize")
    absent = ("has_sparse_grad", "grad_scale", "found_inf")
    enough_tensors = 20
    enough_elements = 1 << 21

    def title(self, options: Options) -> str:  # noqa: ARG002
        """Return SGD."""
        return "SGD"

    def accepts(self, options: Options) -> bool:
        """Return whether the kernel is equivalent to the function, and may be faster."""
        # plain SGD is a single operator, which reads and writes no more than the kernel (types are
        # checked first, as the truth value of a tensor may raise)
        momentum, decay = options.get("momentum"), options.get("weight_decay")
        types = self._number_types
        if type(momentum) in types and not momentum and type(decay) in types and not decay:
            return bool(options.get("maximize") is True and super().accepts(options))
        return super().accepts(options)

    def columns(self, lists: Sequence[Column], options: Options) -> list[Column]:
        """Return parameters, gradients, and momentum buffers if used."""
        return list(lists[: 3 if options["momentum"] else 2])

    def call(self, columns: Sequence[Column], steps: Column, options: Options) -> None:  # noqa: ARG002
        """Run the kernel, never on the first step with momentum, as its buffers are None then."""
        self._torch._fused_sgd_(
            *columns[:2],
            columns[2] if options["momentum"] else [],
            lr=float(options["lr"]),
            momentum=float(options["momentum"]),
            weight_decay=float(options["weight_decay"]),
            dampening=float(options["dampening"]),
            nesterov=options["nesterov"],
            maximize=options["maximize"],
            is_first_step=False,
        )


class AdagradKernel(FusedKernel):
    """Adagrad."""

    name = "adagrad"
    num_lists = 4
    has_steps = True
    max_values: ClassVar = {"lr": LARGE, "weight_decay": LARGE, "lr_decay": LARGE, "eps": LARGE}
    flags = ("maximize",)
    absent = ("has_sparse_grad", "differentiable", "has_complex", "grad_scale", "found_inf")
    enough_tensors = 8
    enough_elements = 1 << 16

    def title(self, options: Options) -> str:  # noqa: ARG002
        """Return Adagrad."""
        return "Adagrad"

    def columns(self, lists: Sequence[Column], options: Options) -> list[Column]:  # noqa: ARG002
        """Return parameters, gradients, and sums of squares."""
        return list(lists[:3])

    def _is_squared(self, column: int) -> bool:
        return column == 2

    def call(self, columns: Sequence[Column], steps: Column, options: Options) -> None:
        """Run the kernel."""
        self._torch._fused_adagrad_(
            *columns,
            steps,
            lr=float(options["lr"]),
            lr_decay=float(options["lr_decay"]),
            weight_decay=float(options["weight_decay"]),
            eps=float(options["eps"]),
            maximize=options["maximize"],
        )


KERNELS: tuple[type[FusedKernel], ...] = (AdamKernel, SGDKernel, AdagradKernel)
"""Kernels of all supported optimizers."""

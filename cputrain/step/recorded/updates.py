"""Steps of optimizers that torch has fused kernels for, without the Python code around these."""

from __future__ import annotations

import weakref
from copy import copy
from functools import wraps
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as step_hooks

from cputrain.runtime.fused_kernels import KERNELS, LARGEST_STEP
from cputrain.runtime.patching import Patch
from cputrain.step.model_tensors import CompileError, TensorMemory, check_memory
from cputrain.step.optimizer_tensors import STEP_HOOKS, OptimizerTensors, is_of_cputrain
from cputrain.step.step_proof import are_near, tolerance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from cputrain.runtime.fused_kernels import FusedKernel

NUM_EAGER = 3
"""Steps that an optimizer takes as torch has it before one is proved."""

MAX_STATES = 4
"""How often what a step depends on may change."""

MAX_TENSORS = 256
"""Number of parameters above which the kernel's time is that of the step."""

_is_profiled = torch._C._autograd._profiler_enabled
_is_compiling = torch.compiler.is_compiling


class Updates:
    """The patches of torch.optim, and the steps of each optimizer."""

    def __init__(self) -> None:
        self._steps: weakref.WeakKeyDictionary[Any, FusedUpdate] = weakref.WeakKeyDictionary()
        self.num_fused = 0
        """Number of steps taken by fused kernels alone."""
        self.redo()

    def redo(self) -> None:
        """Patch torch.optim, also again after `undo`."""
        base: Any = Optimizer
        self._is_on = True
        self._patches = [
            Patch(base, "profile_hook_step", self._decorated(base.profile_hook_step)),
            Patch(base, "zero_grad", _zero_grad(base.zero_grad)),
        ]
        for optimizer_class in _subclasses(Optimizer):
            step = vars(optimizer_class).get("step")
            if hasattr(step, "hooked"):  # torch has decorated it already
                self._patches.append(Patch(optimizer_class, "step", self._replaced(step)))

    def _decorated(self, profile_hook_step: Callable[..., Any]) -> Any:
        """Return torch's decorator of `step`, with another way to take it."""
        return staticmethod(lambda step: self._replaced(profile_hook_step(step)))

    def _replaced(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        """Return `step` that calls the kernel where that does the same."""

        @wraps(eager)
        def step(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and self._is_on and not _is_compiling():
                optimizer = args[0]
                update = self._steps.get(optimizer)
                if update is None:
                    update = self._steps[optimizer] = FusedUpdate(optimizer)
                result = update.take(eager)
                self.num_fused += update.was_fused
                return result
            return eager(*args, **kwargs)

        return step

    def undo(self) -> None:
        """Have optimizers take their own steps."""
        self._is_on = False
        for patch in self._patches:
            patch.undo()


def _subclasses(base: Any) -> Iterator[Any]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


def _zero_grad(original: Callable[..., None]) -> Callable[..., None]:
    """Return `Optimizer.zero_grad` without what only profilers and foreach need."""

    @wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if (
            set_to_none is not True
            or _is_profiled()
            or _is_compiling()
            or "_zero_grad_profile_name" not in vars(self)
        ):
            original(self, set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = None

    return zero_grad


class FusedUpdate:
    """The step of one optimizer, as calls of torch's fused kernel.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._get_optimizer = weakref.ref(optimizer)
        name = type(optimizer).__module__.removeprefix("torch.optim.").replace("adamw", "adam")
        kernel = next((kernel for kernel in KERNELS if kernel.name == name), None)
        self.is_possible = kernel is not None
        """Whether a step may ever be fused."""
        if kernel is not None:
            self._kernel = kernel(torch)
        self.was_fused = False
        """Whether the last step was."""
        self._num_eager = self._num_states = 0
        self._state: OptimizerTensors | None = None
        self._groups: list[_Group] = []

    def take(self, eager: Callable[..., Any]) -> Any:
        """Take the step, by the kernel or as torch has it."""
        self.was_fused = self.is_possible and self._run()
        if self.was_fused:
            return None
        return self._observe(eager) if self.is_possible else eager(self._get_optimizer())

    def _run(self) -> bool:
        """Take the step; return False, with nothing changed, if torch has to."""
        state, optimizer = self._state, self._get_optimizer()
        if (
            state is None
            or optimizer is None
            or not self._num_left
            or _is_profiled()
            or torch._C._len_torch_dispatch_stack()
            or torch._C._len_torch_function_stack()
            or any(getattr(optimizer, name) for name in STEP_HOOKS)
        ):
            return False
        pre_hooks = step_hooks._global_optimizer_pre_hooks.values()
        post_hooks = step_hooks._global_optimizer_post_hooks.values()
        if not all(map(is_of_cputrain, (*pre_hooks, *post_hooks))):
            return False
        if not state.is_current() or not self._memory.is_current():
            self._state = None
            return False
        for group, options in zip(self._groups, optimizer.param_groups, strict=True):
            group.options["lr"] = options["lr"]
            if not group.takes_gradients() or not self._kernel.accepts(group.options):
                return False
        for hook in pre_hooks:
            hook(optimizer, (optimizer,), {})
        self._num_left -= 1
        torch._C._increment_version(self._to_increment)
        for group in self._groups:
            self._kernel.run(group.columns, group.steps, group.options)
        for hook in post_hooks:
            hook(optimizer, (optimizer,), {})
        return True

    def _observe(self, eager: Callable[..., Any]) -> Any:
        """Have torch take the step; prove the kernel beside it if enough have been taken."""
        optimizer = self._get_optimizer()
        self._num_eager += 1
        if self._num_eager <= NUM_EAGER or self._state is not None:
            return eager(optimizer)
        self._num_eager = 0
        self._num_states += 1
        try:
            if self._num_states > MAX_STATES:
                raise CompileError("options change from step to step")
            self._prepare(optimizer)
        except CompileError:
            self.is_possible = False
            return eager(optimizer)
        proofs = [group.copied() for group in self._groups]
        before = [[tensor.clone() for tensor in proof.tensors()] for proof in proofs]
        for proof in proofs:
            self._kernel.run(proof.columns, proof.steps, proof.options)
        result = eager(optimizer)
        for group, proof, tensors in zip(self._groups, proofs, before, strict=True):
            tolerance = tolerance_of(group.columns[0])
            if not are_near(proof.tensors(), group.tensors(), tensors, tolerance):
                self._state, self.is_possible = None, False
        return result

    def _prepare(self, optimizer: Any) -> None:
        """Keep what the step depends on. Raises CompileError."""
        kernel = self._kernel
        state = OptimizerTensors(optimizer)
        groups, to_increment = [], []
        for options in optimizer.param_groups:
            if options.get("fused") is False or options.get("foreach") is not None:
                raise CompileError("the script chose how steps are computed")
            group = _Group(kernel, options, optimizer.state)
            if not group.takes_gradients() or not kernel.accepts(group.options):
                raise CompileError("the kernel does not take these gradients or options")
            increments = kernel.version_increments(group.columns, group.steps, group.options)
            if increments is None:
                raise CompileError("the kernel does not compute what torch does")
            for tensors, count in zip((*group.columns, group.steps), increments, strict=False):
                to_increment += tensors * count
            groups.append(group)
        if sum(len(group.columns[0]) for group in groups) > MAX_TENSORS:
            raise CompileError("the network is large")
        parameters = [parameter for group in groups for parameter in group.columns[0]]
        check_memory([*parameters, *state.tensors])
        self._memory = TensorMemory(parameters)
        self._groups, self._to_increment, self._state = groups, to_increment, state
        counts = [float(step) for group in groups for step in group.steps]
        self._num_left = max(0, LARGEST_STEP - int(max(counts, default=0)))


STATES = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",), "adagrad": ("sum",)}
"""Names of the states that each kernel updates, but for steps."""


class _Group:
    """Arguments of the kernel for one parameter group.

    Raises CompileError.

    Args:
        kernel: The kernel.
        group: The group.
        states: The optimizer's states.
    """

    def __init__(self, kernel: FusedKernel, group: dict[str, Any], states: Any) -> None:
        parameters = group["params"]
        if any(type(each) is not nn.Parameter or each.grad is None for each in parameters):
            raise CompileError("a parameter has no gradient")
        dtypes = {each.dtype for each in parameters}
        if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
            raise CompileError("parameters are not all float32 or float64")
        names = STATES[kernel.name]
        if kernel.name == "sgd" and not group["momentum"]:
            names = ()
        members = [states.get(each, {}) for each in parameters]
        if any(
            not isinstance(values.get(name), Tensor)
            for values in members
            for name in (*names, *(("step",) if kernel.has_steps else ()))
        ):
            raise CompileError("a parameter has no state")
        columns = [[values[name] for values in members] for name in names]
        self.columns: list[list[Any]] = [list(parameters), [], *columns]
        """Parameters, gradients, and states."""
        self.steps = [values["step"] for values in members] if kernel.has_steps else []
        """Step counts."""
        values = dict(group)
        values["beta1"], values["beta2"] = group.get("betas", (0.0, 0.0))
        self.options = {name: values[name] for name in (*kernel.max_values, *kernel.flags)}
        """Options of the kernel."""
        self.options |= {
            name: None if name in {"grad_scale", "found_inf"} else False for name in kernel.absent
        }
        if any(values.get(name) for name in ("amsgrad", *kernel.absent)):
            raise CompileError("an option is not one of the kernel's")
        self._strides = [each.stride() for each in parameters]
        if any(
            tensor.stride() != stride or tensor.shape != parameter.shape
            for column in columns
            for tensor, stride, parameter in zip(column, self._strides, parameters, strict=True)
        ):
            raise CompileError("a state is not laid out as its parameter")

    def takes_gradients(self) -> bool:
        """Take the gradients of now; return whether they are laid out as their parameters."""
        gradients = []
        for parameter, stride in zip(self.columns[0], self._strides, strict=True):
            gradient = parameter.grad
            if (
                type(gradient) is not Tensor
                or gradient.requires_grad
                or gradient.layout is not torch.strided
                or gradient.stride() != stride
            ):
                return False
            gradients.append(gradient)
        self.columns[1] = gradients
        return True

    def tensors(self) -> list[Tensor]:
        """Return what a step changes."""
        return [*self.columns[0], *chain.from_iterable(self.columns[2:]), *self.steps]

    def copied(self) -> _Group:
        """Return a group with copies of what a step changes."""
        group = copy(self)
        group.columns = [[each.detach().clone() for each in column] for column in self.columns]
        group.steps = [each.clone() for each in self.steps]
        return group

"""Steps of optimizers that torch has fused kernels for, without the Python code around these."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim import optimizer as step_hooks

from cputrain.runtime.fused_kernels import KERNELS
from cputrain.runtime.patching import Patch
from cputrain.step.compiled_step import replay
from cputrain.step.model_tensors import CompileError, TensorMemory, check_memory
from cputrain.step.optimizer_tensors import STEP_HOOKS, OptimizerTensors
from cputrain.step.script_values import ScriptValues
from cputrain.step.step_proof import are_near, tolerance_of
from cputrain.step.traced_step import trace
from cputrain.step.traced_update import UpdateFunction

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
        self._is_on = True
        self.num_fused = 0
        """Number of steps taken by fused kernels alone."""
        base: Any = Optimizer
        self._patches = [
            Patch(base, "profile_hook_step", self._hooked(base.profile_hook_step)),
            Patch(base, "zero_grad", _zero_grad(base.zero_grad)),
        ]

    def _hooked(self, profile_hook_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's decorator of `step`, with another way to take it."""

        def decorate(step: Callable[..., Any]) -> Any:
            eager = profile_hook_step(step)

            @wraps(step)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if len(args) == 1 and not kwargs and self._is_on and not _is_compiling():
                    optimizer = args[0]
                    update = self._steps.get(optimizer)
                    if update is None:
                        update = self._steps[optimizer] = FusedUpdate(optimizer)
                    if update.is_possible:
                        if update.run():
                            self.num_fused += 1
                            return None
                        return update.observe(eager)
                return eager(*args, **kwargs)

            return wrapper

        return staticmethod(decorate)  # type: ignore[return-value]

    def undo(self) -> None:
        """Have optimizers take their own steps."""
        self._is_on = False
        for patch in self._patches:
            patch.undo()


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
    """The step of one optimizer, as a call of torch's fused kernel.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._get_optimizer = weakref.ref(optimizer)
        self._kernel = next(
            (
                kernel
                for kernel in KERNELS
                if type(optimizer).__module__ in {f"torch.optim.{kernel.name}", "torch.optim.adamw"}
            ),
            None,
        )
        self.is_possible = self._kernel is not None
        """Whether a step may ever be fused."""
        self._num_eager = self._num_states = 0
        self._state: OptimizerTensors | None = None
        self._run: Any = None

    def run(self) -> bool:
        """Take the step; return False, with nothing changed, if torch has to."""
        state, optimizer = self._state, self._get_optimizer()
        if (
            state is None
            or optimizer is None
            or _is_profiled()
            or torch._C._len_torch_dispatch_stack()
            or torch._C._len_torch_function_stack()
            or any(getattr(optimizer, name) for name in STEP_HOOKS)
        ):
            return False
        pre_hooks = step_hooks._global_optimizer_pre_hooks.values()
        post_hooks = step_hooks._global_optimizer_post_hooks.values()
        if not all(map(_is_of_cputrain, (*pre_hooks, *post_hooks))):
            return False
        gradients = self._gradients()
        if gradients is None or not state.is_current() or not self._memory.is_current():
            self._state = None
            return False
        if not all(map(self._accepts_rate, optimizer.param_groups)):
            return False
        for hook in pre_hooks:
            hook(optimizer, (optimizer,), {})
        self._run([*self._parameters, *gradients, *state.tensors, *state.rates])
        increment_version(self._parameters)
        increment_version(state.tensors)
        for hook in post_hooks:
            hook(optimizer, (optimizer,), {})
        return True

    def _gradients(self) -> list[Tensor] | None:
        """Return the gradients; None if they are not as they were when the step was proved."""
        gradients: list[Tensor] = []
        for parameter, stride in zip(self._parameters, self._strides, strict=True):
            gradient = parameter.grad
            if (
                gradient is None
                or type(gradient) is not Tensor
                or gradient.requires_grad
                or gradient.layout is not torch.strided
                or gradient.stride() != stride
            ):
                return None
            gradients.append(gradient)
        if any([parameter.grad is not None for parameter in self._others]):
            return None
        return gradients

    def _accepts_rate(self, group: dict[str, Any]) -> bool:
        rate = group["lr"]
        assert self._kernel is not None
        return (
            type(rate) in {float, int}
            and 0 <= rate <= self._kernel.max_values["lr"]
            and (
                not group.get("decoupled_weight_decay", False)
                or rate * group["weight_decay"] <= 1
            )
        )

    def observe(self, eager: Callable[..., Any]) -> Any:
        """Have torch take the step; prove the kernel beside it if enough have been taken."""
        optimizer = self._get_optimizer()
        self._num_eager += 1
        proof = None
        if self._num_eager > NUM_EAGER and self._state is None:
            self._num_eager = 0
            self._num_states += 1
            if self._num_states > MAX_STATES:
                self.is_possible = False
            else:
                try:
                    proof = self._prepare(optimizer)
                except CompileError:
                    self.is_possible = False
        result = eager(optimizer)
        if proof is not None:
            copies, before = proof
            state = proof_state = self._state
            assert state is not None and proof_state is not None
            current = [*self._parameters, *state.tensors]
            if not are_near(copies, current, before, tolerance_of(self._parameters)):
                self._state, self.is_possible = None, False
        return result

    def _prepare(self, optimizer: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Return what the kernel makes of copies of parameters and states, and those before.

        Raises CompileError.
        """
        kernel = self._kernel
        assert kernel is not None
        state = OptimizerTensors(optimizer)
        everything = [each for group in state.group_parameters for each in group]
        self._parameters = [each for each in everything if each.grad is not None]
        self._others = [each for each in everything if each.grad is None]
        if not self._parameters or len(self._parameters) > MAX_TENSORS:
            raise CompileError("it has no gradients, or those of a large network")
        if any(type(each) is not nn.Parameter for each in self._parameters):
            raise CompileError("it optimizes other tensors than parameters")
        if len({each.dtype for each in self._parameters}) > 1 or self._parameters[0].dtype not in {
            torch.float32, torch.float64,
        }:  # fmt: skip
            raise CompileError("its parameters are not all float32 or float64")
        for group, options in zip(optimizer.param_groups, state.groups, strict=True):
            if (
                "fused" not in options
                or options["fused"] is False
                or options.get("foreach") is not None
                or any(options.get(name) for name in ("amsgrad", "capturable", "differentiable"))
                or any(
                    not 0 <= options.get(name, 0) <= bound
                    for name, bound in kernel.max_values.items()
                    if name in options
                )
                or any(not 0 <= beta < 1 for beta in options.get("betas", ()))
                or not self._accepts_rate(group)
            ):
                raise CompileError("an option is not one of the kernel's")
        check_memory([*self._parameters, *state.tensors])
        self._memory = TensorMemory(list(self._parameters))
        self._strides = [each.stride() for each in self._parameters]
        gradients = self._gradients()
        if gradients is None:
            raise CompileError("gradients are not laid out as parameters")
        update = UpdateFunction(optimizer, state, is_fused=True)
        parameters, number = self._parameters, len(self._parameters)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            updated = {id(each): each.detach() for each in self._others}
            for parameter, tensor, gradient in zip(
                parameters, tensors, tensors[number:], strict=False
            ):
                updated[id(parameter)] = tensor.detach()
                updated[id(parameter)].grad = gradient
            update(updated, tensors[2 * number :])
            return ()

        before = [each.detach().clone() for each in (*parameters, *state.tensors)]
        copies = [each.clone() for each in before]
        with torch.no_grad():
            tensors = [*copies[:number], *gradients, *copies[number:], *state.rates]
            self._run = replay(trace(function, tensors, ScriptValues((), ())))
        self._run(tensors)
        self._state = state
        return copies, before


def _is_of_cputrain(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("cputrain.")

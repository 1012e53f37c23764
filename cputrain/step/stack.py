"""`Stack`: steps of several networks of one architecture as one compiled function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.utils._pytree import tree_map_only

from cputrain.errors import UsageError
from cputrain.step.background import compile_or_replay, only_tracer, wait_for
from cputrain.step.batches import BatchLayout, layout_of, needs_gradient
from cputrain.step.index_bounds import IndexBounds
from cputrain.step.model_tensors import CompileError, ModelTensors
from cputrain.step.recorded.updates import FusedUpdate
from cputrain.step.stacked_gradients import StackedGradients
from cputrain.step.step import check_step_arguments
from cputrain.step.step_proof import are_near, tolerance_of
from cputrain.step.step_tensors import ModelAndLoss
from cputrain.step.torch_state import torch_state
from cputrain.step.traced_step import trace
from cputrain.user_warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from torch.optim import Optimizer

    from cputrain.step.compiled_step import Compiled

MAX_COMPILED = 8
"""Number of layouts of batches, and of values that steps depend on, that are compiled."""


class Stack:
    """Training steps of several networks of one architecture, computed as one.

    `losses = stack(inputs, targets)` takes the step of each model with its optimizer, as `Step`
    does for one. Their gradients are computed by one compiled function. Models, parameters, and
    optimizers with their states stay torch's; each optimizer has its own options. Numbers are those
    of models trained alone.

    The first steps are eager. What cannot be compiled is eager for good; `eager_reason` says why.

    Args:
        models: The models, which differ in their numbers only.
        loss: Called with a model's output and the targets; returns a tensor of one number.
        optimizers: An optimizer of torch.optim for each model.
        has_own_batches: Whether inputs and targets have a batch for each model along their first
            dimension. Otherwise all models have the same batch.
        max_grad_norm: Clip the norm of each model's gradients to this.
        use_compiler: Whether to compile in C++. Otherwise, and where there is no C++ compiler, the
            operators are called one after the other.

    Example:
        >>> import torch
        >>> from cputrain import Stack
        >>> models = [torch.nn.Linear(8, 1) for _ in range(4)]
        >>> optimizers = [torch.optim.Adam(model.parameters()) for model in models]
        >>> stack = Stack(models, torch.nn.MSELoss(), optimizers, use_compiler=False)
        >>> stack(torch.ones(16, 8), torch.zeros(16, 1)).shape
        torch.Size([4])
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        loss: Callable[..., Tensor],
        optimizers: Sequence[Optimizer],
        *,
        has_own_batches: bool = False,
        max_grad_norm: float | None = None,
        use_compiler: bool = True,
    ) -> None:
        models, optimizers = list(models), list(optimizers)
        _check_stack(models, loss, optimizers, max_grad_norm)
        self._wholes = [ModelAndLoss(model, loss) for model in models]
        self._optimizers, self._updates = optimizers, list(map(FusedUpdate, optimizers))
        self._has_own_batches, self._max_grad_norm = has_own_batches, max_grad_norm
        self._use_compiler = use_compiler
        self._states: list[ModelTensors] = []
        self._stacked: list[Tensor] = []
        self._programs: list[_StackProgram] = []
        self._key: Any = None
        self.eager_reason = ""
        """Why steps are not compiled; "" if they are, or will be."""
        self.num_compiled = 0
        """Number of compiled steps so far."""

    def __call__(self, inputs: Any, *targets: Any) -> Tensor:
        """Take a step of each model, and return their losses.

        Args:
            inputs: Argument of the models; a tuple or list of their arguments; or a dictionary of
                their keyword arguments.
            targets: Further arguments of the loss.
        """
        if self._has_own_batches:
            self._check_batches(inputs, targets)
        if not self.eager_reason:
            try:
                ready = self._find(inputs, targets)
                if ready is not None:
                    program, tensors = ready
                    if program.run is None:
                        return self._prove(program, tensors, inputs, targets)
                    losses = self._run(program.run, tensors)
                    if losses is not None:
                        return losses
            except CompileError as error:
                self._give_up(str(error))
        losses = self._compute_gradients(inputs, targets)
        self._update()
        return losses

    def wait(self) -> None:
        """Wait until what is being compiled is compiled; the next step uses it."""
        for program in self._programs:
            if program.future is not None:
                wait_for(program.future)

    def _batch(self, inputs: Any, targets: tuple[Any, ...], index: int) -> Any:
        """Return the batch of one model."""
        if not self._has_own_batches:
            return inputs, targets
        return tree_map_only(Tensor, lambda tensor: tensor[index], (inputs, targets))

    def _check_batches(self, inputs: Any, targets: tuple[Any, ...]) -> None:
        def check(tensor: Tensor) -> None:
            if not tensor.dim() or len(tensor) != len(self._wholes):
                raise UsageError(
                    "inputs", f"must have {len(self._wholes)} batches along the first dimension",
                    found=f"a tensor of shape {tuple(tensor.shape)}",
                    do="Stack the batches, or leave has_own_batches out.",
                )  # fmt: skip

        tree_map_only(Tensor, check, (inputs, targets))

    def _compute_gradients(self, inputs: Any, targets: tuple[Any, ...]) -> Tensor:
        """Have autograd compute the gradients of one model after the other; return the losses.

        Nothing is added to gradients if the forward of any model fails.
        """
        losses: list[Tensor] = [
            whole(*self._batch(inputs, targets, index)) for index, whole in enumerate(self._wholes)
        ]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach().reshape(()) for loss in losses])

    def _update(self) -> None:
        """Clip gradients, take the optimizers' steps, and let go of the gradients."""
        for optimizer, update in zip(self._optimizers, self._updates, strict=True):
            if self._max_grad_norm is not None:
                parameters = [each for group in optimizer.param_groups for each in group["params"]]
                nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
            # a scheduler replaces `step`, and counts its calls
            step = vars(optimizer).get("step")
            if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
                optimizer.step()
            else:
                update.take(type(optimizer).step)
                optimizer._opt_called = True  # type: ignore[attr-defined]
        for state in self._states:
            for parameter in state.parameters.values():
                parameter.grad = None

    def _find(
        self, inputs: Any, targets: tuple[Any, ...]
    ) -> tuple[_StackProgram, list[Tensor]] | None:
        """Return what is compiled for a batch with its arguments; None if nothing is yet."""
        torch_now = torch_state()
        if torch_now is None or needs_gradient(inputs, targets):
            return None
        if not self._states or not all(state.is_current() for state in self._states):
            self._gather()
        if any(
            parameter.grad is not None
            for state in self._states
            for parameter in state.parameters.values()
        ):
            return None
        key = (self._key, torch_now)
        for program in self._programs:
            tensors = program.layout.tensors_of(inputs, targets)
            if program.key == key and tensors is not None:
                break
        else:
            if len(self._programs) == MAX_COMPILED:
                raise CompileError("batches or values change from step to step")
            self._programs.append(_StackProgram(BatchLayout(inputs, targets), key))
            return None
        arguments = [*self._stacked, *tensors]
        if program.future is None:
            with only_tracer() as is_only:
                if is_only:
                    self._compile(program, arguments, inputs, targets)
        if program.future is None or not program.future.done():
            return None
        is_valid = program.bounds is not None and program.bounds.are_met(arguments)
        return (program, arguments) if is_valid else None

    def _gather(self) -> None:
        """Have tensors of all models be parts of stacked ones. Raises CompileError."""
        self._states = []
        functions = [] if isinstance(self._wholes[0].loss, nn.Module) else [self._wholes[0].loss]
        states = [ModelTensors(whole, functions, has_attributes=False) for whole in self._wholes]
        key = states[0].key
        if any(state.key != key for state in states):
            raise CompileError("models differ in more than numbers")
        columns = list(zip(*(state.tensors for state in states), strict=True))
        addresses = [tensor.data_ptr() for column in columns for tensor in column]
        if len(set(addresses)) < len(addresses):
            raise CompileError("models share tensors")
        if any(not tensor.is_contiguous() for column in columns for tensor in column):
            raise CompileError("a tensor is not contiguous")
        self._stacked = [torch.stack([tensor.detach() for tensor in column]) for column in columns]
        for column, stacked in zip(columns, self._stacked, strict=True):
            for tensor, part in zip(column, stacked.unbind(), strict=True):
                tensor.data = part
        for state in states:
            state.move()
        self._states, self._key = states, key

    def _compile(
        self, program: _StackProgram, arguments: list[Tensor], inputs: Any, targets: tuple[Any, ...]
    ) -> None:
        state = self._states[0]
        layout = BatchLayout(*self._batch(inputs, targets, 0))
        function = StackedGradients(
            self._wholes[0], state, layout, has_own_batches=self._has_own_batches
        )
        graph = trace(function, arguments, state.values)
        program.bounds = IndexBounds(graph)  # an index too large is one of the next model's table
        program.future = compile_or_replay(graph, arguments, use_compiler=self._use_compiler)

    def _prove(
        self, program: _StackProgram, arguments: list[Tensor], inputs: Any, targets: tuple[Any, ...]
    ) -> Tensor:
        """Take an eager step, and use the compiled function from now on if both agree."""
        assert program.future is not None
        run = program.future.result()
        number = len(self._stacked)
        copies = [tensor.clone() for tensor in self._stacked]
        before = [tensor.clone() for tensor in copies]
        with torch.no_grad():
            computed = run([*copies, *arguments[number:]])
        losses = self._compute_gradients(inputs, targets)
        gradients = [
            torch.stack([state.tensors[position].grad for state in self._states])  # type: ignore[misc]
            for position in self._trained()
        ]
        expected = [losses, *gradients]
        tolerance = tolerance_of(self._stacked)
        if not are_near(computed, expected, list(map(torch.zeros_like, expected)), tolerance):
            self._give_up("losses or gradients of the compiled function are others")
        elif not are_near(copies, self._stacked, before, tolerance):
            self._give_up("the compiled function changes buffers otherwise")
        else:
            program.run = run
        self._update()
        return losses

    def _trained(self) -> list[int]:
        """Return positions of the parameters that get gradients."""
        parameters = self._states[0].parameters.values()
        return [number for number, each in enumerate(parameters) if each.requires_grad]

    def _run(self, run: Compiled, arguments: list[Tensor]) -> Tensor | None:
        """Take a compiled step; return None if it failed, which eager steps will explain."""
        try:
            with torch.no_grad():
                losses, *gradients = run(arguments)
        except (RuntimeError, IndexError):
            return None
        for position, gradient in zip(self._trained(), gradients, strict=True):
            for state, part in zip(self._states, gradient.unbind(), strict=True):
                state.tensors[position].grad = part
        for state in self._states:
            increment_version(list(state.buffers.values()))
        self._update()
        self.num_compiled += 1
        return losses

    def _give_up(self, reason: str) -> None:
        self.eager_reason = reason
        warn(f"Stack runs eagerly: {reason}")


class _StackProgram:
    """A compiled function for one layout of batches, and values that it depends on."""

    def __init__(self, layout: BatchLayout, key: Any) -> None:
        self.layout, self.key = layout, key
        self.future: Future[Compiled] | None = None
        self.bounds: IndexBounds | None = None
        self.run: Compiled | None = None


def _check_stack(
    models: list[Any], loss: object, optimizers: list[Any], max_grad_norm: object
) -> None:
    if not models:
        raise UsageError("models", "must not be empty", found="[]")
    if len(models) != len(optimizers):
        raise UsageError(
            "optimizers", "must have one optimizer for each model",
            found=f"{len(optimizers)} for {len(models)} models",
        )  # fmt: skip
    for model, optimizer in zip(models, optimizers, strict=True):
        check_step_arguments(model, loss, optimizer, max_grad_norm)
        if type(model) is not type(models[0]) or _outline(model) != _outline(models[0]):
            raise UsageError(
                "models", "must have one architecture",
                found=f"{type(models[0]).__name__} and {type(model).__name__} of other layers",
                do="Stack models that were made by the same call.",
            )  # fmt: skip
    parameters = [id(each) for model in models for each in model.parameters()]
    if len(set(parameters)) < len(parameters):
        raise UsageError("models", "must have parameters of their own", found="shared parameters")


def _outline(model: nn.Module) -> list[Any]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [(name, layout_of(tensor)) for name, tensor in tensors]

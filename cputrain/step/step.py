"""`Step`: forward, loss, backward, clipping and optimizer in one compiled function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim import optimizer as step_hooks

from cputrain.errors import ArgumentTypeError, UsageError, argument_error
from cputrain.step.background import compile_or_replay, only_tracer, wait_for
from cputrain.step.batches import BatchLayout, needs_gradient
from cputrain.step.compiled_step import find_cpp_compiler
from cputrain.step.contest import Contest
from cputrain.step.losses import Losses
from cputrain.step.model_tensors import CompileError
from cputrain.step.optimizer_tensors import STEP_HOOKS, is_of_cputrain
from cputrain.step.step_proof import StepProof
from cputrain.step.step_tensors import ModelAndLoss, StepTensors
from cputrain.step.torch_state import torch_state
from cputrain.step.traced_step import StepFunction, trace
from cputrain.user_warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from cputrain.step.compiled_step import Compiled

MAX_PROGRAMS = 8
"""Number of layouts, and of other values that a compiled step depends on, that are compiled."""


MAX_ELEMENTS = 32768
"""Size of an optimizer's state above which torch's fused kernels are faster than Inductor."""


class _Program:
    """A compiled step, and what it is for.

    Args:
        layout: Layout of batches.
        torch_state: The state of torch.
        has_gradient: Whether each parameter has a gradient before the step.
        updates: Whether the optimizer takes its step.
    """

    def __init__(
        self,
        layout: BatchLayout,
        torch_state: tuple[Any, ...],
        has_gradient: Sequence[bool],
        *,
        updates: bool,
    ) -> None:
        self.layout, self.has_gradient = layout, has_gradient
        self._torch_state, self.updates = torch_state, updates
        self.future: Future[Compiled] | None = None
        self.function: StepFunction | None = None
        """What was compiled."""
        self.run: Compiled | None = None
        """The compiled function, once it was proved."""
        self.shared: set[int] = set()
        """Positions of results whose memory other results or arguments have, too."""

    def tensors_of(self, call: _StepCall) -> list[Tensor] | None:
        """Return the batch of a call; None if it needs another function."""
        if (
            self.updates is not call.updates
            or self.has_gradient != [gradient is not None for gradient in call.gradients]
            or self._torch_state != call.torch_state
        ):
            return None
        return self.layout.tensors_of(call.inputs, call.targets)


class _StepCall(NamedTuple):
    """Arguments of a step, and what else it depends on."""

    inputs: Any
    targets: tuple[Any, ...]
    updates: bool
    gradients: list[Tensor | None]
    torch_state: tuple[Any, ...]

    def dense(self) -> list[Tensor]:
        """Return the gradients that there are."""
        return [gradient for gradient in self.gradients if gradient is not None]


class Step:
    """A training step in one compiled function.

    `loss = step(inputs, targets)` does what these lines do:

        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    The first steps run as these lines, while the function is compiled in the background. Then both
    take turns until it is known which are faster. Whatever the function cannot do runs as these
    lines for good; `eager_reason` says why.

    Args:
        model: The model. Python code of its forward runs while it is compiled, not in each step.
        loss: Called with the model's output and the targets; returns a tensor of one number, or
            several tensors in a tuple, list or dictionary. Gradients are those of the sum of all
            that need one; others, such as an accuracy, are returned as they are.
        optimizer: An optimizer of torch.optim.
        max_grad_norm: Clip the norm of all gradients to this, as `clip_grad_norm_` does.
        use_compiler: Whether to compile in C++. Otherwise, and where there is no C++ compiler, the
            operators of a step are called one after the other, without modules and autograd.

    Example:
        >>> import torch
        >>> from cputrain import Step
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> step = Step(model, torch.nn.MSELoss(), optimizer, use_compiler=False)
        >>> losses = [step(torch.ones(4, 8), torch.zeros(4, 1)) for _ in range(10)]
        >>> bool(losses[9] < losses[0])
        True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        *,
        max_grad_norm: float | None = None,
        use_compiler: bool = True,
    ) -> None:
        check_step_arguments(model, loss, optimizer, max_grad_norm)
        self._whole = ModelAndLoss(model, loss)
        self._optimizer, self._max_grad_norm = optimizer, max_grad_norm
        self._use_compiler = use_compiler
        self._state: StepTensors | None = None
        self._key: tuple[Any, ...] | None = None
        self._programs: dict[Any, list[_Program]] = {}
        self._ready: list[_Program] = []
        self._contest = Contest()
        self._has_stepped = False
        self.eager_reason = ""
        """Why steps are not compiled; "" if they are, or will be."""
        self.num_compiled = 0
        """Number of compiled steps so far."""
        self.grad_norm: Tensor | None = None
        """Norm of all gradients in the last step before clipping; None without clipping."""

    def __call__(self, inputs: Any, *targets: Any) -> Any:
        """Take a step, and return the loss, or the losses in the containers of the loss function.

        Args:
            inputs: Argument of the model; a tuple or list of its arguments; or a dictionary of its
                keyword arguments.
            targets: Further arguments of the loss.
        """
        return self._take(inputs, targets, updates=True)

    def accumulate(self, inputs: Any, *targets: Any) -> Any:
        """Add the gradients of a batch to those of the next step, and return the loss.

        Parameters and the optimizer do not change. A mean over several batches is that of the loss
        divided by their number.

        Args:
            inputs: As of a step.
            targets: As of a step.
        """
        return self._take(inputs, targets, updates=False)

    def wait(self) -> None:
        """Wait until what is being compiled is compiled; the next step uses it."""
        for programs in self._programs.values():
            for program in programs:
                if program.future is not None:
                    wait_for(program.future)

    def _take(self, inputs: Any, targets: tuple[Any, ...], *, updates: bool) -> Any:
        state, torch_now = self._state, torch_state()
        if self._ready and state is not None and torch_now is not None and self._is_current(state):
            gradients = state.gradients()
            if gradients is not None:
                call = _StepCall(inputs, targets, updates, gradients, torch_now)
                for program in self._ready:
                    tensors = program.tensors_of(call)
                    if tensors is not None:
                        return self._compete(program, state, call, tensors)
        return self._step(inputs, targets, updates=updates)

    def _is_current(self, state: StepTensors) -> bool:
        return state.is_current() and not has_step_hooks(self._optimizer)

    def _compete(
        self, program: _Program, state: StepTensors, call: _StepCall, batch: list[Tensor]
    ) -> Any:
        """Take a step for which there is a compiled one, by either while it is not known to win."""
        is_compiled = self._contest.is_over or self._contest.begin()
        losses = self._run(program, state, call, batch) if is_compiled else None
        if losses is None:
            losses = self._run_eagerly(call.inputs, call.targets, updates=call.updates)
        if not self._contest.is_over and self._contest.end():
            self._give_up("steps are no faster compiled")
        return losses

    def _run(
        self, program: _Program, state: StepTensors, call: _StepCall, batch: list[Tensor]
    ) -> Any:
        """Take a compiled step; return None if it failed, which an eager step will explain."""
        optimizer: Any = self._optimizer
        run, function, gradients = program.run, program.function, call.dense()
        assert run is not None
        assert function is not None
        assert function.losses is not None
        if call.updates:
            for hook in step_hooks._global_optimizer_pre_hooks.values():
                hook(optimizer, (), {})
        try:
            with torch.no_grad():
                results = run([*state.tensors, *gradients, *batch])
        except (RuntimeError, IndexError):
            return None
        self.num_compiled += 1
        number = len(function.losses.tensors)
        if call.updates:
            increment_version(state.changed)
            optimizer._opt_called = True  # for schedulers
            for hook in step_hooks._global_optimizer_post_hooks.values():
                hook(optimizer, (), {})
            if self._max_grad_norm is not None:
                self.grad_norm = results[number]
            if gradients:
                optimizer.zero_grad()
        else:
            increment_version([*state.model.buffers.values(), *gradients])
            positions = iter(range(number, len(results)))
            for parameter, gets in zip(
                state.model.parameters.values(), function.gets_gradient, strict=True
            ):
                if gets:
                    position = next(positions)
                    result = results[position]
                    parameter.grad = result.clone() if position in program.shared else result
        return function.losses.fill(results[:number])

    def _step(self, inputs: Any, targets: tuple[Any, ...], *, updates: bool) -> Any:
        """Take a step of which nothing is known yet."""
        if not self.eager_reason:
            try:
                ready = self._find_program(inputs, targets, updates=updates)
                if ready is not None:
                    program, state, call, tensors = ready
                    if program.run is None:
                        return self._prove(program, state, call, tensors)
                    self._ready = [
                        each for each in self._programs[self._key] if each.run is not None
                    ]
                    losses = self._run(program, state, call, tensors)
                    if losses is not None:
                        return losses
            except CompileError as error:
                self._give_up(str(error))
        return self._run_eagerly(inputs, targets, updates=updates)

    def _run_eagerly(self, inputs: Any, targets: tuple[Any, ...], *, updates: bool) -> Any:
        losses = Losses(self._whole(inputs, targets))
        losses.backward()
        if updates:
            if self._max_grad_norm is not None:
                parameters = [
                    parameter
                    for group in self._optimizer.param_groups
                    for parameter in group["params"]
                ]
                self.grad_norm = nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._has_stepped = True
        return losses.detached()

    def _find_program(
        self, inputs: Any, targets: tuple[Any, ...], *, updates: bool
    ) -> tuple[_Program, StepTensors, _StepCall, list[Tensor]] | None:
        """Return what is compiled for a batch, with its arguments; None if nothing is, or not yet.

        A step that has been taken often enough is traced here, and compiled in the background.
        """
        torch_now = torch_state()
        if not self._has_stepped or torch_now is None:
            return None
        if has_step_hooks(self._optimizer):
            raise CompileError("a hook watches the optimizer's steps")
        if self._state is None or not self._state.is_current():
            change = "" if self._state is None else self._state.difference()
            self._state = None
            self._state = StepTensors(self._whole, self._optimizer)
            if self._state.key != self._key:
                self._ready = []
            self._key = self._state.key
            if self._key not in self._programs and len(self._programs) >= MAX_PROGRAMS:
                raise CompileError(f"{change or 'a value'} changes from step to step")
        gradients = self._state.gradients()
        if gradients is None or needs_gradient(inputs, targets):
            return None
        call = _StepCall(inputs, targets, updates, gradients, torch_now)
        programs = self._programs.setdefault(self._key, [])
        for program in programs:
            tensors = program.tensors_of(call)
            if tensors is not None:
                break
        else:
            if len(programs) < MAX_PROGRAMS:
                has_gradient = [gradient is not None for gradient in gradients]
                layout = BatchLayout(inputs, targets)
                programs.append(_Program(layout, torch_now, has_gradient, updates=updates))
            return None
        if program.future is None:
            with only_tracer() as is_only:
                if is_only:
                    self._compile(program, self._state, call, tensors)
        is_compiled = program.future is not None and program.future.done()
        return (program, self._state, call, tensors) if is_compiled else None

    def _compile(
        self, program: _Program, state: StepTensors, call: _StepCall, batch: list[Tensor]
    ) -> None:
        """Trace the step, and compile it in the background."""
        tensors = [*state.tensors, *call.dense(), *batch]
        has_compiler = self._use_compiler and find_cpp_compiler() is not None
        num_elements = sum(map(Tensor.numel, state.optimizer.tensors))
        program.function = StepFunction(
            self._whole, self._optimizer, state, program.layout, self._max_grad_norm,
            has_gradient=program.has_gradient, updates=program.updates,
            is_fused=not has_compiler or num_elements > MAX_ELEMENTS,
        )  # fmt: skip
        graph = trace(program.function, tensors, state.model.values)
        program.future = compile_or_replay(graph, tensors, use_compiler=has_compiler)

    def _prove(
        self, program: _Program, state: StepTensors, call: _StepCall, batch: list[Tensor]
    ) -> Any:
        """Take an eager step, and use the compiled one from now on if both agree."""
        assert program.future is not None
        assert program.function is not None
        compiled = program.future.result()
        proof = StepProof(compiled, program.function, state, call.gradients, batch)
        losses = self._run_eagerly(call.inputs, call.targets, updates=call.updates)
        difference = proof.difference(losses, self._whole, self._optimizer)
        if difference:
            self._give_up(difference)
        else:
            program.run, program.shared = compiled, proof.shared()
            self._ready.append(program)
        return losses

    def _give_up(self, reason: str) -> None:
        self._ready = []
        self.eager_reason = reason
        warn(f"Step runs eagerly: {reason}")


def check_step_arguments(
    model: object, loss: object, optimizer: object, max_grad_norm: object
) -> None:
    """Raise an error for an argument of a wrong type or value."""
    for name, value, expected in (
        ("model", model, nn.Module), ("optimizer", optimizer, Optimizer)
    ):  # fmt: skip
        if not isinstance(value, expected):
            raise ArgumentTypeError(
                name, f"must be a torch {expected.__name__}", found=type(value).__name__
            )
    if not callable(loss):
        raise ArgumentTypeError(
            "loss", "must be a function of the output and targets", found=repr(loss)
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "optimizer", "must take a step without a closure", found="LBFGS",
            do="Write its loop as without Step.",
        )  # fmt: skip
    if max_grad_norm is not None and not (
        isinstance(max_grad_norm, int | float)
        and not isinstance(max_grad_norm, bool)
        and max_grad_norm > 0
    ):
        raise argument_error(max_grad_norm, int, float)(
            "max_grad_norm", "must be a positive number or None", found=repr(max_grad_norm)
        )


def has_step_hooks(optimizer: Any) -> bool:
    """Return whether the script watches an optimizer's steps."""
    step = vars(optimizer).get("step")  # a scheduler replaces it, and counts its calls
    return (
        any(getattr(optimizer, name) for name in STEP_HOOKS)
        or not all(map(is_of_cputrain, _global_hooks()))
        or (step is not None and not hasattr(step, "_wrapped_by_lr_sched"))
    )


def _global_hooks() -> Iterator[Any]:
    yield from step_hooks._global_optimizer_pre_hooks.values()
    yield from step_hooks._global_optimizer_post_hooks.values()

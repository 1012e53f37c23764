"""`Step`: forward, loss, backward, clipping and optimizer in one compiled function."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim import optimizer as step_hooks

from cputrain.errors import ArgumentTypeError, UsageError, argument_error
from cputrain.step.background import compile_in_background
from cputrain.step.batches import BatchLayout, needs_gradient
from cputrain.step.compiled_step import find_cpp_compiler, replay
from cputrain.step.contest import Contest
from cputrain.step.model_tensors import CompileError
from cputrain.step.optimizer_tensors import STEP_HOOKS, is_of_cputrain
from cputrain.step.step_proof import StepProof
from cputrain.step.step_tensors import ModelAndLoss, StepTensors
from cputrain.step.torch_state import torch_state
from cputrain.step.traced_step import StepFunction, trace
from cputrain.user_warnings import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from cputrain.step.compiled_step import Compiled

MAX_PROGRAMS = 8
"""Number of layouts, and of other values that a compiled step depends on, that are compiled."""


MAX_ELEMENTS = 32768
"""Size of an optimizer's state above which torch's fused kernels are faster than Inductor."""


class _Program:
    """A compiled step for one layout of batches and one set of values that it depends on."""

    def __init__(self, layout: BatchLayout, torch_state: tuple[Any, ...]) -> None:
        self.layout, self.torch_state = layout, torch_state
        self.future: Future[Compiled] | None = None
        self.run: Compiled | None = None
        """The compiled function, once it was proved."""


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
        loss: Called with the model's output and the targets; returns a tensor of one number.
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
        loss: Callable[..., Tensor],
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
        self._current: _Program | None = None
        self._contest = Contest()
        self._has_stepped = False
        self.eager_reason = ""
        """Why steps are not compiled; "" if they are, or will be."""
        self.num_compiled = 0
        """Number of compiled steps so far."""
        self.grad_norm: Tensor | None = None
        """Norm of all gradients in the last step before clipping; None without clipping."""

    def __call__(self, inputs: Any, *targets: Any) -> Tensor:
        """Take a step, and return the loss.

        Args:
            inputs: Argument of the model; a tuple or list of its arguments; or a dictionary of its
                keyword arguments.
            targets: Further arguments of the loss.
        """
        program, state = self._current, self._state
        if program is not None and state is not None and program.run is not None:
            tensors = program.layout.tensors_of(inputs, targets)
            if (
                tensors is not None
                and program.torch_state == torch_state()
                and self._is_current(state)
            ):
                is_compiled = self._contest.is_over or self._contest.begin()
                loss = self._run(program.run, state, tensors) if is_compiled else None
                if loss is None:
                    loss = self._run_eagerly(inputs, targets)
                if not self._contest.is_over and self._contest.end():
                    self._give_up("steps are no faster compiled")
                return loss
        return self._step(inputs, targets)

    def wait(self) -> None:
        """Wait until what is being compiled is compiled; the next step uses it."""
        for programs in self._programs.values():
            for program in programs:
                if program.future is not None:
                    program.future.exception()

    def _is_current(self, state: StepTensors) -> bool:
        return (
            state.is_current()
            and not state.have_gradients()
            and not has_step_hooks(self._optimizer)
        )

    def _run(self, run: Compiled, state: StepTensors, batch: list[Tensor]) -> Tensor | None:
        """Take a compiled step; return None if it failed, which an eager step will explain."""
        optimizer: Any = self._optimizer
        for hook in step_hooks._global_optimizer_pre_hooks.values():
            hook(optimizer, (), {})
        try:
            with torch.no_grad():
                results = run([*state.tensors, *batch])
        except (RuntimeError, IndexError):
            return None
        increment_version(state.tensors)
        optimizer._opt_called = True  # for schedulers
        for hook in step_hooks._global_optimizer_post_hooks.values():
            hook(optimizer, (), {})
        self.num_compiled += 1
        if self._max_grad_norm is not None:
            self.grad_norm = results[1]
        return results[0]

    def _step(self, inputs: Any, targets: tuple[Any, ...]) -> Tensor:
        """Take a step of which nothing is known yet."""
        if self.eager_reason:
            return self._run_eagerly(inputs, targets)
        try:
            ready = self._find_program(inputs, targets)
            if ready is not None:
                program, state, tensors = ready
                if program.run is not None:
                    self._current = program
                    loss = self._run(program.run, state, tensors)
                    return self._run_eagerly(inputs, targets) if loss is None else loss
                return self._prove(program, state, tensors, inputs, targets)
        except CompileError as error:
            self._give_up(str(error))
        return self._run_eagerly(inputs, targets)

    def _run_eagerly(self, inputs: Any, targets: tuple[Any, ...]) -> Tensor:
        loss: Tensor = self._whole(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._max_grad_norm is not None:
            parameters = [
                parameter for group in self._optimizer.param_groups for parameter in group["params"]
            ]
            self.grad_norm = nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._has_stepped = True
        return loss.detach()

    def _find_program(
        self, inputs: Any, targets: tuple[Any, ...]
    ) -> tuple[_Program, StepTensors, list[Tensor]] | None:
        """Return what is compiled for a batch, with its arguments; None if nothing is, or not yet.

        A step that has been taken often enough is traced here, and compiled in the background.
        """
        current = torch_state()
        if not self._has_stepped or current is None:
            return None
        if has_step_hooks(self._optimizer):
            raise CompileError("a hook watches the optimizer's steps")
        if self._state is None or not self._state.is_current():
            change = "" if self._state is None else self._state.difference()
            self._state = None
            self._state = StepTensors(self._whole, self._optimizer)
            if self._state.key != self._key:
                self._current = None
            self._key = self._state.key
            if self._key not in self._programs and len(self._programs) >= MAX_PROGRAMS:
                raise CompileError(f"{change or 'a value'} changes from step to step")
        if self._state.have_gradients() or needs_gradient(inputs, targets):
            return None
        programs = self._programs.setdefault(self._key, [])
        for program in programs:
            tensors = program.layout.tensors_of(inputs, targets)
            if program.torch_state == current and tensors is not None:
                break
        else:
            if len(programs) < MAX_PROGRAMS:
                programs.append(_Program(BatchLayout(inputs, targets), current))
            return None
        if program.future is None:
            self._compile(program, self._state, tensors)
        assert program.future is not None
        return (program, self._state, tensors) if program.future.done() else None

    def _compile(self, program: _Program, state: StepTensors, batch: list[Tensor]) -> None:
        """Trace the step, and compile it in the background."""
        tensors = [*state.tensors, *batch]
        has_compiler = self._use_compiler and find_cpp_compiler() is not None
        num_elements = sum(map(Tensor.numel, state.optimizer.tensors))
        function = StepFunction(
            self._whole, self._optimizer, state, program.layout, self._max_grad_norm,
            is_fused=not has_compiler or num_elements > MAX_ELEMENTS,
        )  # fmt: skip
        graph = trace(function, tensors, state.model.values)
        program.future = Future() if not has_compiler else compile_in_background(graph, tensors)
        if not has_compiler:
            program.future.set_result(replay(graph))

    def _prove(
        self,
        program: _Program,
        state: StepTensors,
        batch: list[Tensor],
        inputs: Any,
        targets: tuple[Any, ...],
    ) -> Tensor:
        """Take an eager step, and use the compiled one from now on if both agree."""
        assert program.future is not None
        compiled = program.future.result()
        proof = StepProof(compiled, state, batch)
        loss = self._run_eagerly(inputs, targets)
        difference = proof.difference(loss, self._whole, self._optimizer)
        if difference:
            self._give_up(difference)
        else:
            program.run = compiled
            self._current = program
        return loss

    def _give_up(self, reason: str) -> None:
        self._current = None
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

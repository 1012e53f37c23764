"""Trace a whole step, forward to optimizer, into a flat graph of ATen operators."""

from __future__ import annotations

import random
import sys
import warnings
from contextlib import contextmanager
from traceback import extract_tb
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cputrain.runtime.effects import TORCH_FOLDER, EffectError, without_effects
from cputrain.runtime.patching import PACKAGE
from cputrain.step.losses import Losses
from cputrain.step.model_tensors import CompileError
from cputrain.step.traced_update import UpdateFunction, laid_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from torch.fx import GraphModule
    from torch.optim import Optimizer

    from cputrain.step.batches import BatchLayout
    from cputrain.step.script_values import ScriptValues
    from cputrain.step.step_tensors import ModelAndLoss, StepTensors

ALIASES = (
    torch.ops.aten.detach.default, torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh.default,
)  # fmt: skip
"""Operators that return their argument, as far as numbers go."""


class StepFunction:
    """A whole step as a function of tensors, some of which it changes in place.

    Args:
        whole: The model and the loss.
        optimizer: The optimizer, whose step is traced for other tensors.
        state: The tensors of both.
        layout: Layout of batches.
        max_grad_norm: What gradients are clipped to; None for no clipping.
        has_gradient: Whether each parameter has a gradient before the step.
        updates: Whether the optimizer takes its step; otherwise gradients are kept.
        is_fused: Whether the optimizer's step is one operator for all parameters, if it has one.
    """

    def __init__(
        self,
        whole: ModelAndLoss,
        optimizer: Optimizer,
        state: StepTensors,
        layout: BatchLayout,
        max_grad_norm: float | None,
        *,
        has_gradient: Sequence[bool],
        updates: bool,
        is_fused: bool,
    ) -> None:
        self._whole, self._model = whole, state.model
        self._update = UpdateFunction(optimizer, state.optimizer, is_fused=is_fused)
        self._layout, self._max_grad_norm = layout, max_grad_norm
        self._num_update_tensors = len(state.tensors) - len(state.model.tensors)
        self._has_gradient = has_gradient
        self.updates = updates
        """Whether the optimizer takes its step."""
        self.losses: Losses | None = None
        """What the loss function has returned."""
        self.gets_gradient: list[bool] = []
        """Whether each parameter has its first gradient after the step, behind the losses."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Take a step; return the losses, and the norm of clipped gradients or new gradients.

        Args:
            tensors: Those of StepTensors in their order, gradients, and those of a batch.
        """
        model, remaining = self._model, iter(tensors)
        names = list(model.parameters)
        parameters = [next(remaining) for _ in names]
        others = {name: next(remaining) for name in (*model.buffers, *model.attributes)}
        update_tensors = [next(remaining) for _ in range(self._num_update_tensors)]
        before = [next(remaining) if has else None for has in self._has_gradient]
        batch = self._layout.fill(list(remaining))
        needed = [parameter.requires_grad for parameter in model.parameters.values()]
        leaves = [
            parameter.detach().requires_grad_(is_needed)
            for parameter, is_needed in zip(parameters, needed, strict=True)
        ]
        with torch.enable_grad():
            self.losses = losses = Losses(
                model.call(self._whole, {**dict(zip(names, leaves, strict=True)), **others}, batch)
            )
            if not losses.trained or any(loss.numel() != 1 for loss in losses.trained):
                raise CompileError("the loss is no tensor of one number that needs a gradient")
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            gradients = iter(torch.autograd.grad(losses.trained, wanted, allow_unused=True))
        results = [loss.detach() for loss in losses.tensors]
        updated = [parameter.detach() for parameter in parameters]
        for parameter, is_needed, old in zip(updated, needed, before, strict=True):
            gradient = next(gradients) if is_needed else None
            if gradient is not None:
                gradient = laid_out(gradient, parameter)
            if old is not None and gradient is not None:
                old.add_(gradient)
            parameter.grad = gradient if old is None else old
        if not self.updates:
            new = [
                parameter.grad if old is None else None
                for parameter, old in zip(updated, before, strict=True)
            ]
            self.gets_gradient = [gradient is not None for gradient in new]
            return (*results, *(gradient for gradient in new if gradient is not None))
        if self._max_grad_norm is not None:
            results.append(nn.utils.clip_grad_norm_(updated, self._max_grad_norm, foreach=False))
        originals = map(id, model.parameters.values())
        self._update(dict(zip(originals, updated, strict=True)), update_tensors)
        for parameter in updated:
            parameter.grad = None
        return tuple(results)


def trace(
    function: Callable[..., Any], tensors: Sequence[Tensor], values: ScriptValues
) -> GraphModule:
    """Return the graph of a step: operators of ATen, some of which change arguments in place.

    Nothing of the script is changed. Raises CompileError for what is no operator of torch, and for
    what depends on numbers or changes from step to step.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    random_state, numbers = torch.get_rng_state(), _random_numbers()
    try:
        with without_effects(), _compiling(), _without_onednn(), _without_warnings():
            graph = make_fx(function, tracing_mode="fake")(*tensors)
    except CompileError:
        raise
    except EffectError as error:
        raise CompileError(str(error)) from None
    except Exception as error:
        raise CompileError(_reason(error)) from error
    finally:
        torch.set_rng_state(random_state)
        change = values.restore()
        has_drawn = _random_numbers() != numbers
        random.setstate(numbers[0])
        if len(numbers) > 1:
            sys.modules["numpy"].random.set_state(numbers[1])
    if change:
        raise CompileError(f"{change} changes from step to step")
    if has_drawn:
        raise CompileError("the forward draws random numbers of Python or NumPy")
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def _random_numbers() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's random numbers, which can be compared."""
    if "numpy" not in sys.modules:
        return (random.getstate(),)
    name, keys, *rest = sys.modules["numpy"].random.get_state()
    return random.getstate(), (name, tuple(keys.tolist()), *rest)


def _reason(error: Exception) -> str:
    """Return why a step cannot be traced, with the line of the script."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    if isinstance(error, GuardOnDataDependentSymNode):
        text = "what happens depends on numbers in tensors"
    elif "convert all Tensors to FakeTensors" in str(error):
        text = "a tensor is neither parameter, buffer, attribute nor argument"
    else:
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not frame.filename.startswith((PACKAGE, TORCH_FOLDER, "<"))
    ]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


@contextmanager
def _compiling() -> Iterator[None]:
    """Have optimizers compute with tensors instead of numbers, as for torch.compile."""
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Trace an LSTM as operators on its time steps, as other recurrent networks are traced.

    oneDNN's operator for a layer returns no workspace where it needs none, and its gradient then
    takes no argument that Python could give it.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Show no warnings of a forward: it has shown them when it was called before.

    What `warnings.catch_warnings` does would have later ones shown twice.
    """
    module: Any = warnings
    before = module._showwarnmsg
    module._showwarnmsg = lambda _: None
    try:
        yield
    finally:
        module._showwarnmsg = before

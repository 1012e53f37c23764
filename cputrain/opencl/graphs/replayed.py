"""A call of a model in autograd's graph, whose forward and backward are replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import Function
from torch.autograd.graph import increment_version
from torch.utils import _pytree as tree

from cputrain.opencl.generator import generator_of
from cputrain.opencl.graphs.graphed_call import at_offset_0
from cputrain.opencl.tensor import OclTensor
from cputrain.runtime.root_forward import within_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import Tensor

    from cputrain.opencl.graphs.graphed_call import Flight, GraphedCall

CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: a tensor that was given to {model}, or one of its parameters. cputrain needed it "
    "to compute gradients in another way than in the steps before. Set CPUTRAIN_OCL_GRAPHS=0."
)
"""What is raised where a backward is another than those before, and cannot be computed any more."""


class Replay:
    """One replayed call.

    Args:
        graphed: What is replayed.
        flight: Its state; while it is not over, the call is not replayed again.
        call: Calls the model.
        model: The model.
        args: Arguments of the call.
        kwargs: Its named arguments.
    """

    def __init__(
        self, graphed: GraphedCall, flight: Flight, call: Callable[..., Any], model: Any, args: Any,
        kwargs: Any,
    ) -> None:  # fmt: skip
        self.graphed, self.flight = graphed, flight
        self._call, self._model, self._args, self._kwargs = call, model, args, kwargs
        self.originals = [
            leaf for leaf in tree.tree_leaves((args, kwargs)) if isinstance(leaf, OclTensor)
        ]
        self.inputs = [at_offset_0(leaf) for leaf in self.originals]
        """The arguments, in memory of their own where they are parts of larger tensors."""
        self._versions = [
            (each, each._version) for each in (*self.originals, *graphed.trained)
        ]
        self.is_used = False
        """Whether the backward was replayed."""
        generator = generator_of(graphed.device.index)
        self._random_state = generator.get_state() if graphed.forward.has_draws else None

    def run(self) -> Any:
        """Return what the model returns."""
        graphed = self.graphed
        outputs = iter(_Replayed.apply(self, *self.inputs, *graphed.trained))
        if graphed.changed:
            increment_version(graphed.changed)
        values = [next(outputs) if each is None else each[0] for each in graphed.constants]
        return tree.tree_unflatten(values, graphed.structure)

    def is_expected(self, gradients: Sequence[Any]) -> bool:
        """Return whether the backward can be replayed for these gradients.

        It was captured for some, and takes the memory of what the forward has left.
        """
        expected = self.graphed.gradients
        return not self.is_used and not torch.is_grad_enabled() and all(
            getattr(gradient, "metadata", None) is expected.get(index)
            for index, gradient in enumerate(gradients)
        )

    def gradients_of_another_call(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Call the model again, and return the gradients that torch computes."""
        if any(tensor._version != version for tensor, version in self._versions):
            raise RuntimeError(CHANGED.format(model=type(self._model).__name__))
        graphed = self.graphed
        copies = [buffer.detach().clone() for buffer in graphed.buffers]
        generator = generator_of(graphed.device.index)
        state = generator.get_state()
        if self._random_state is not None:
            generator.set_state(self._random_state)
        with torch.enable_grad(), within_call():
            returned = tree.tree_leaves(self._call(self._model, *self._args, **self._kwargs))
        generator.set_state(state)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(graphed.buffers)):
            for buffer, copy in zip(graphed.buffers, copies, strict=True):
                buffer.copy_(copy)
        outputs = [each for each in returned if isinstance(each, OclTensor)]
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        wanted = [each for each in (*self.originals, *graphed.trained) if each.requires_grad]
        return list(
            torch.autograd.grad(
                [output for output, _ in pairs], wanted, [gradient for _, gradient in pairs],
                create_graph=torch.is_grad_enabled(), allow_unused=True,
            )
        )  # fmt: skip


class _Replayed(Function):
    """Outputs of a replayed forward, with a replayed backward."""

    @staticmethod
    def forward(ctx: Any, replay: Replay, *_: Tensor) -> tuple[Tensor, ...]:
        graphed = replay.graphed
        outputs = graphed.run_forward(replay.inputs)
        ctx.replay = replay
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(each for each, needs in zip(outputs, graphed.needs_grad, strict=True) if not needs)
        )
        kept = [
            *(each if slots.backward else None for each, slots in zip(replay.inputs, graphed.inputs, strict=True)),
            *(each if new.slots.backward else None for each, new in zip(outputs, graphed.new_outputs, strict=True)),
            *(each for each in graphed.trained if id(each) in graphed.read_again),
            *(each for each, slots in zip(replay.originals, graphed.inputs, strict=True) if slots.backward),
        ]
        ctx.save_for_backward(torch.empty(0, device="cpu"), *kept)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        _, *kept = ctx.saved_tensors
        replay: Replay = ctx.replay
        graphed = replay.graphed
        if replay.is_expected(gradients):
            replay.is_used = True
            num_inputs, num_outputs = len(graphed.inputs), len(graphed.new_outputs)
            taken: Any = graphed.run_backward(
                kept[:num_inputs], kept[num_inputs : num_inputs + num_outputs], gradients
            )
        else:
            taken = replay.gradients_of_another_call(gradients)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            replay.flight.is_over = True
        results = iter(taken)
        wanted = (*replay.inputs, *graphed.trained)
        return (None, *(next(results) if each.requires_grad else None for each in wanted))

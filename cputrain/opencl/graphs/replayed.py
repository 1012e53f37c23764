"""A replayed call in autograd's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import Function
from torch.autograd.graph import increment_version

from cputrain.opencl.generator import generator_of
from cputrain.opencl.graphs.autocast_state import autocast_dtype, in_autocast
from cputrain.opencl.graphs.graphed_call import at_offset_0
from cputrain.opencl.graphs.returned import Returned
from cputrain.opencl.tensor import OclTensor
from cputrain.runtime.root_forward import within_call
from cputrain.variables import OCL_GRAPHS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torch import Tensor

    from cputrain.opencl.graphs.graphed_call import Flight, GraphedCall, ModelCall

CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    f"operation: an argument of {{model}} or one of its parameters. cputrain needs it as backward "
    f"is another than in the steps before. Set {OCL_GRAPHS}=0."
)
"""What is raised where a call cannot be made again."""


class ReplayedCall:
    """A call that is replayed.

    Args:
        graphed: The captured call.
        flight: Its state; until it is over, the captured call is not replayed again.
        call: The call.
    """

    def __init__(self, graphed: GraphedCall, flight: Flight, call: ModelCall) -> None:
        self.graphed, self.flight = graphed, flight
        self._call = call
        self.originals = call.tensors()
        """The tensors among the arguments."""
        self.inputs = list(map(at_offset_0, self.originals))
        """The same, in memory of their own where they are parts of larger tensors."""
        self._versions = [(each, each._version) for each in (*self.originals, *graphed.trained)]
        self._autocast_dtype = autocast_dtype()
        self.is_used = False
        """Whether the backward was replayed: it takes the memory of what the forward has left."""
        self._generator = generator_of(graphed.device.index)
        self._random_state = self._generator.get_state() if graphed.forward.has_draws else None

    def run(self) -> Any:
        """Return what the model returns."""
        graphed = self.graphed
        function: Any = _ReplayedFunction
        outputs = function.apply(self, *self.inputs, *graphed.trained)
        if graphed.changed:
            increment_version(graphed.changed)
        return graphed.returned.with_tensors(outputs)

    def is_expected(self, gradients: Sequence[Any]) -> bool:
        """Return whether the backward that was captured can be replayed for these gradients."""
        expected = self.graphed.gradients
        return (
            not self.is_used
            and not torch.is_grad_enabled()
            and all(
                getattr(gradient, "metadata", None) is expected.get(index)
                for index, gradient in enumerate(gradients)
            )
        )

    def kept(self, outputs: Sequence[OclTensor]) -> list[OclTensor | None]:
        """Return the tensors that the backward reads, or None in their place.

        Autograd raises an error if they are changed meanwhile.
        """
        graphed = self.graphed
        return [
            *self._read(self.inputs, graphed.inputs),
            *self._read(outputs, [new.slots for new in graphed.outputs]),
            *self._read(self.originals, graphed.inputs),
            *(each for each in graphed.trained if id(each) in graphed.read_again),
        ]

    @staticmethod
    def _read(tensors: Sequence[OclTensor], slots: Sequence[Any]) -> list[OclTensor | None]:
        pairs = zip(tensors, slots, strict=True)
        return [tensor if each.backward else None for tensor, each in pairs]

    def call_again(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Call the model as it was called; return the gradients of arguments and parameters.

        Buffers and random numbers are as if it had not been called again.
        """
        if any(tensor._version != version for tensor, version in self._versions):
            raise RuntimeError(CHANGED.format(model=type(self._call.model).__name__))
        graphed = self.graphed
        buffers: Any = tuple(graphed.buffers)
        copies = [buffer.detach().clone() for buffer in buffers]
        state = self._generator.get_state()
        if self._random_state is not None:
            self._generator.set_state(self._random_state)
        with torch.enable_grad(), within_call(), in_autocast(self._autocast_dtype):
            outputs = Returned(self._call.run()).take_tensors()
        self._generator.set_state(state)
        autograd: Any = torch.autograd
        with torch.no_grad(), autograd._unsafe_preserve_version_counter(buffers):
            for buffer, copy in zip(buffers, copies, strict=True):
                buffer.copy_(copy)
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


def _accumulate(graphed: GraphedCall, gradients: Sequence[Any]) -> list[Any]:
    """Add gradients to those of parameters as torch does; return those that torch must add.

    Torch calls several operators for each parameter.
    """
    left: list[Any] = [None] * len(gradients)
    sums, terms = [], []
    triples = zip(graphed.trained, gradients, graphed.are_kept, strict=True)
    for index, (parameter, gradient, is_kept) in enumerate(triples):
        before: Any = parameter.grad
        if not is_kept or (
            before is not None and getattr(before, "metadata", None) is not gradient.metadata
        ):
            left[index] = gradient
        elif before is None:
            parameter.grad = gradient
        else:
            sums.append(before)
            terms.append(gradient)
    if sums:
        torch._foreach_add_(sums, terms)
    return left


class _ReplayedFunction(Function):
    """Outputs of a replayed forward, with a replayed backward."""

    @staticmethod
    def forward(ctx: Any, replay: ReplayedCall, *_: Tensor) -> tuple[Tensor, ...]:
        graphed = replay.graphed
        outputs = graphed.run_forward(replay.inputs)
        ctx.replay = replay
        ctx.set_materialize_grads(False)
        pairs = zip(outputs, graphed.needs_grad, strict=True)
        ctx.mark_non_differentiable(*(output for output, needs_grad in pairs if not needs_grad))
        # the first is for autograd's error where backward is called again
        ctx.save_for_backward(torch.empty(0, device="cpu"), *replay.kept(outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        _, *kept = ctx.saved_tensors
        replay: ReplayedCall = ctx.replay
        graphed = replay.graphed
        taken: Any
        if replay.is_expected(gradients):
            replay.is_used = True
            num_inputs, num_outputs = len(graphed.inputs), len(graphed.outputs)
            inputs, outputs = kept[:num_inputs], kept[num_inputs : num_inputs + num_outputs]
            taken = graphed.run_backward(inputs, outputs, gradients)
        else:
            taken = replay.call_again(gradients)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            replay.flight.is_over = True
        supply = iter(taken)
        of_inputs = [next(supply) if each.requires_grad else None for each in replay.inputs]
        of_parameters: Sequence[Any] = list(supply)
        if replay.is_used and _accumulates(ctx, len(of_inputs)):
            of_parameters = _accumulate(graphed, of_parameters)
        return (None, *of_inputs, *of_parameters)


def _accumulates(ctx: Any, num_inputs: int) -> bool:
    """Return whether gradients of all parameters are added to `grad`, as by `backward`."""
    is_run: Any = torch._C._will_engine_execute_node
    try:
        return all(is_run(node) for node, _ in ctx.next_functions[num_inputs:])
    except RuntimeError:  # torch.autograd.grad returns them
        return False

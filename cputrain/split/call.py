"""One forward of one batch, in parts; and its backward."""

from __future__ import annotations

import time
from contextlib import ExitStack, nullcontext

import torch

from cputrain.errors import DifferentiatedTwice
from cputrain.split.batch import leaves_of
from cputrain.split.meeting import Meeting
from cputrain.split.part import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cputrain.split.batch import Arguments, Range, Together
    from cputrain.split.crew import Alone, Crew
    from cputrain.split.draws import Draws
    from cputrain.split.views import View

    Calls = Callable[..., Any]


class Call:
    """What its parts have in common, and what is kept until the backward."""

    def __init__(
        self,
        crew: Crew | Alone,
        views: Sequence[View],
        call: Calls,
        arguments: Arguments,
        ranges: Sequence[Range],
        draws: Draws,
        took: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._crew = crew
        self._views = views[: len(ranges)]
        self._call = call
        self._arguments = arguments
        self._ranges = ranges
        self._meeting = Meeting(len(ranges))
        self._parts = [
            Part(number, range_, arguments.size, self._meeting, draws)
            for number, range_ in enumerate(ranges)
        ]
        self._took = took
        self._seconds = 0.0
        self._states = States()
        self._inputs: list[list[torch.Tensor]] = []
        self.outputs: list[list[Any]] = []
        """The leaves of each part's output, with their graphs."""
        self.form: Any = None

    def forward(self) -> None:
        """Run every part."""
        begin = time.perf_counter()
        done = self._crew.run([self._forward_of(part) for part in self._parts], self._meeting)
        self._inputs = [inputs for inputs, _, _ in done]
        self.outputs = [leaves for _, leaves, _ in done]
        self.form = done[0][2]
        self._seconds = time.perf_counter() - begin

    @property
    def has_graph(self) -> bool:
        """Whether there is anything to go back through."""
        return any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaves in self.outputs
            for leaf in leaves
        )

    def _forward_of(self, part: Part) -> Callable[[], Any]:
        def job() -> tuple[list[torch.Tensor], list[Any], Any]:
            view = self._views[part.number]
            leaves = self._arguments.part(self._ranges[part.number])
            args, options = self._arguments.built(leaves)
            # a single part is the whole: what it calls is torch's own
            with self._states.here(), part if len(self._parts) > 1 else nullcontext():
                output = self._call(view.model, *args, **options)
            inputs = [leaves[number] for number in self._arguments.differentiable]
            return inputs, *leaves_of(output)

        return job

    def backward(
        self,
        gradients: Sequence[tuple[int, int | None, torch.Tensor]],
        needed: Sequence[bool],
        *,
        keep: bool,
    ) -> list[torch.Tensor | None]:
        """What of the gradients of outputs (leaf, dimension, gradient) arrives at each input, and
        then at each parameter."""
        begin = time.perf_counter()
        jobs = [self._backward_of(part, gradients, needed, keep=keep) for part in self._parts]
        self._meeting = meeting = Meeting(len(self._parts))
        for part in self._parts:
            part.meeting = meeting
        found = self._crew.run(jobs, meeting)
        inputs = len(self._arguments.differentiable)
        summed = _summed(self._crew, [one[inputs:] for one in found])
        gathered = self._gathered([one[:inputs] for one in found])
        self._took(self._seconds + time.perf_counter() - begin)
        return [*gathered, *summed]

    def _backward_of(
        self,
        part: Part,
        gradients: Sequence[tuple[int, int | None, torch.Tensor]],
        needed: Sequence[bool],
        *,
        keep: bool,
    ) -> Callable[[], Any]:
        begin, end = self._ranges[part.number]
        size = self._arguments.size

        def job() -> list[torch.Tensor | None]:
            outputs, given = [], []
            for number, dim, gradient in gradients:
                output = self.outputs[part.number][number]
                if not output.requires_grad or (dim is None and part.number):
                    continue
                outputs.append(output)
                if dim is None:
                    given.append(gradient)
                else:
                    each = gradient.size(dim) // size
                    given.append(gradient.narrow(dim, begin * each, (end - begin) * each))
            inputs = [*self._inputs[part.number], *self._views[part.number].parameters]
            wanted = [one for one, need in zip(inputs, needed, strict=True) if need]
            if not outputs:
                part.meeting.leave(part.number)
                return [None] * len(inputs)
            with part if len(self._parts) > 1 else nullcontext():
                found = iter(
                    torch.autograd.grad(
                        outputs, wanted, given, retain_graph=keep, allow_unused=True
                    )
                )
            return [next(found) if need else None for need in needed]

        return job

    def _gathered(self, parts: Sequence[Sequence[Any]]) -> list[torch.Tensor | None]:
        """Gradients of what was divided are put together; of what went to all, added."""
        gathered: list[torch.Tensor | None] = []
        arguments = self._arguments
        for place, number in enumerate(arguments.differentiable):
            found = [part[place] for part in parts]
            if all(one is None for one in found):
                gathered.append(None)
            elif (dim := arguments.dims[number]) is not None:
                leaf = arguments.leaves[number]
                for at, (begin, end) in enumerate(self._ranges):
                    if found[at] is None:
                        found[at] = torch.zeros_like(leaf.narrow(dim, begin, end - begin))
                gathered.append(torch.cat(found, dim))
            else:
                gathered.append(_sum(found))
        return gathered


class States:
    """What torch keeps for each thread: a replica has what the caller has."""

    def __init__(self) -> None:
        self._gradients = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = torch.is_autocast_enabled("cpu")
        self._autocast_type = torch.get_autocast_dtype("cpu")
        self._caches = torch.is_autocast_cache_enabled()

    def here(self) -> ExitStack:
        """The same in this thread."""
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(self._inference))
        stack.enter_context(torch.set_grad_enabled(self._gradients))
        stack.enter_context(
            torch.autocast(
                "cpu", self._autocast_type, enabled=self._autocast, cache_enabled=self._caches
            )
        )
        return stack


def _sum(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """In the order of the replicas, whatever arrived first."""
    there = [one for one in gradients if one is not None]
    if len(there) < 2:
        return there[0] if there else None
    total = there[0] + there[1]
    for one in there[2:]:
        total = total + one if total.layout is not torch.strided else total.add_(one)
    return total


def _summed(crew: Crew | Alone, found: Sequence[Sequence[torch.Tensor | None]]) -> list[Any]:
    """The sums of all parameters, by all replicas: each sums as much as the others."""
    count = len(found[0])
    sums: list[torch.Tensor | None] = [None] * count
    if len(found) == 1:
        return list(found[0])
    sizes = [0 if one is None else one.numel() for one in found[0]]
    shares: list[list[int]] = [[] for _ in found]
    loads = [0] * len(found)
    for number in sorted(range(count), key=lambda one: -sizes[one]):
        least = loads.index(min(loads))
        shares[least].append(number)
        loads[least] += sizes[number] + 1

    def job_of(share: Sequence[int]) -> Callable[[], None]:
        def job() -> None:
            with torch.no_grad():
                for number in share:
                    sums[number] = _sum([part[number] for part in found])

        return job

    crew.run([job_of(share) for share in shares])
    return sums


class Whole(torch.autograd.Function):
    """The call, as one step in the caller's graph."""

    @staticmethod
    def forward(ctx: Any, call: Call, together: Together, *_: torch.Tensor) -> tuple[Any, ...]:
        ctx.call, ctx.together = call, together
        ctx.set_materialize_grads(False)
        leaves = together.put([_detached(part) for part in call.outputs])
        tensors = [
            (number, leaf) for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        ]
        ctx.numbers = [number for number, _ in tensors]
        ctx.mark_non_differentiable(
            *(
                leaf
                for number, leaf in tensors
                if not any(part[number].requires_grad for part in call.outputs)
            )
        )
        return tuple(leaf for _, leaf in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # these would look as if they did not depend on the model
            raise DifferentiatedTwice(
                "the model",
                "gives no gradients that can be differentiated again while its batch is divided",
                found="create_graph=True",
                do="Call the model itself there, not the Split of it; or launch it without "
                "--replicas.",
            )
        given = [
            (number, ctx.together.dims[number], gradient)
            for number, gradient in zip(ctx.numbers, gradients, strict=True)
            if gradient is not None
        ]
        keep = torch._C._autograd._get_current_graph_task_keep_graph()
        found = ctx.call.backward(given, ctx.needs_input_grad[2:], keep=keep)
        return None, None, *found


def _detached(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

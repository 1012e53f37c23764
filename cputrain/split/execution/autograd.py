"""One forward of one batch, in parts; and its backward."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import torch

from cputrain.errors import DifferentiatedTwice
from cputrain.runtime.openmp import end_team
from cputrain.split.batch import ranges
from cputrain.split.devices import Stopwatch, default_device, finish
from cputrain.split.execution.context import ReplicaContext, end_checkpoints
from cputrain.split.execution.flat_params import Packed
from cputrain.split.execution.replica_group import added
from cputrain.split.execution.transfer import TransferStream
from cputrain.split.outputs import REDUCED, leaves_of
from cputrain.split.sync.barrier import ReplicaBarrier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.split.batch import Arguments
    from cputrain.split.execution.oom_retry import Attempts
    from cputrain.split.execution.replica_group import ReplicaGroup
    from cputrain.split.outputs import OutputLayout
    from cputrain.split.sync.rng import SharedDraws

    Calls = Callable[..., Any]


class ShardJob:
    """A part's, in three steps; each is given what came of the one before."""

    def __init__(
        self, give: Callable[[], Any], work: Callable[[Any], Any], take: Callable[[Any], Any]
    ) -> None:
        self.give, self.work, self.take = give, work, take

    def all(self) -> Any:
        """One after the other."""
        return self.take(self.work(self.give()))


class ShardedForward:
    """What its parts have in common, and what is kept until the backward."""

    def __init__(
        self,
        team: ReplicaGroup,
        call: Calls,
        arguments: Arguments,
        sizes: Sequence[int],
        draws: SharedDraws,
        states: CallerState | None = None,
        took: Callable[[float, Sequence[float]], None] | None = None,
        proved: Collection[tuple[bool, ...]] | None = None,
    ) -> None:
        """In these `states`, or the caller's.

        Raises UnprovedError for questions about the batch with answers that are not `proved`.

        With `took`, told how long it was: in all, and each part without waiting for others. What
        the caller does between its forward and its backward is a part of it where the model is on
        a GPU, which works on meanwhile.
        """
        self.team = team
        self._call = call
        self._arguments = arguments
        self._ranges = ranges(sizes)
        self._meeting = ReplicaBarrier(len(sizes))
        self._parts = [
            ReplicaContext(
                number, range_, arguments.size, self._meeting, draws,
                device=team.devices[number], apart=team.apart, proved=proved,
            )
            for number, range_ in enumerate(self._ranges)
        ]  # fmt: skip
        self._took = took
        self._began = 0.0
        self._left: float | None = None
        self._busy = [0.0] * len(sizes)
        self._watches: list[tuple[int, Stopwatch]] = []
        self._states = CallerState(team.home) if states is None else states
        self._inputs: list[list[torch.Tensor]] = []
        self._outputs: list[list[Any]] = []
        self.outputs: list[list[Any]] = []
        """The leaves of each part's output, without their graphs, where the model is."""
        self.form: Any = None
        self.too_large: int | None = None
        """The part that did not fit into the memory of its device."""

    def forward(self) -> None:
        """Run every part."""
        self._begin()
        self.team.refresh()
        done = self._run([self._forward_of(part) for part in self._parts])
        self._inputs = [inputs for inputs, _, _, _ in done]
        self._outputs = [leaves for _, leaves, _, _ in done]
        self.outputs = [leaves for _, _, leaves, _ in done]
        self.form = done[0][3]
        for part in self._parts:
            part.proved = None  # what a backward computes again has the same answers
        self._leave()

    def _begin(self) -> None:
        """From now on it takes its time."""
        if self._took is None:
            return
        if self._left is None:
            finish(self.team.home)
            self._began = time.perf_counter()
        elif self.team.home.type == "cpu":  # a GPU is at it still
            self._began += time.perf_counter() - self._left

    def _leave(self) -> None:
        """What comes until its backward is the caller's."""
        self._left = time.perf_counter()

    def _tell(self) -> None:
        """How long it was, and how long each part was busy."""
        if self._took is None:
            return
        finish(self.team.home)
        seconds = time.perf_counter() - self._began
        self._leave()
        for number, watch in self._watches:
            self._busy[number] += watch.seconds
        self._watches.clear()
        self._took(seconds, self._busy)
        self._took = None

    def _run(self, jobs: Sequence[ShardJob]) -> list[Any]:
        """A job for each part.

        Where the model is not on the CPU, the caller carries what goes there and back, before
        anybody begins and after the last: what a member asked of the model's device could have
        to wait for all that this device has been given to do. His own threads have nothing to do
        meanwhile, and go: replicas on the CPU are faster without them.
        """
        if not self.team.carries:
            whole = [
                self._as_one(part, job.all) for part, job in zip(self._parts, jobs, strict=True)
            ]
            return self.team.run(whole, self._meeting)
        given = []
        for part, job in zip(self._parts, jobs, strict=True):
            with self._fits(part):
                given.append(job.give())
        work = [
            self._as_one(part, partial(job.work, one))
            for part, job, one in zip(self._parts, jobs, given, strict=True)
        ]
        if any(part.device.type == "cpu" for part in self._parts):
            end_team()
        done = self.team.run(work, self._meeting)
        return [job.take(one) for job, one in zip(jobs, done, strict=True)]

    def _as_one(self, part: ReplicaContext, job: Callable[[], Any]) -> Callable[[], Any]:
        """The same; nobody waits for a part that has failed, wherever that was."""

        def done() -> Any:
            try:
                with self._fits(part), self.team.at(part.device), self._states.default(part.device):
                    if self._took is None:
                        return job()
                    watch = Stopwatch(part.device)
                    result = job()
                    watch.stop()
            except BaseException as error:
                part.meeting.part()
                end_checkpoints(error)
                raise
            self._watches.append((part.number, watch))
            self._busy[part.number] -= part.meeting.waited[part.number]
            return result

        return done

    @contextmanager
    def _fits(self, part: ReplicaContext) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            self.too_large = part.number
            raise

    @property
    def asked(self) -> bool:
        """Whether the model has asked questions about the whole batch."""
        return any(part.answers for part in self._parts)

    def forget(self) -> None:
        """Nothing that a backward would need is needed any more."""
        self._inputs, self._outputs, self.outputs = [], [], []

    @property
    def has_graph(self) -> bool:
        """Whether there is anything to go back through."""
        return any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaves in self._outputs
            for leaf in leaves
        )

    def needs(self, number: int) -> bool:
        """Whether anything goes back through this leaf."""
        return any(leaves[number].requires_grad for leaves in self._outputs)

    def _here(self, part: ReplicaContext) -> AbstractContextManager[Any]:
        """Within a part; a single one is the whole: what it calls is torch's own."""
        return nullcontext() if len(self._parts) == 1 and not self.team.apart else part

    def _forward_of(self, part: ReplicaContext) -> ShardJob:
        road = TransferStream(self.team.home, part.device)

        def give() -> list[Any]:
            with road.there():
                self.team.prepare(self, part.number)
                leaves = self._arguments.part(self._ranges[part.number])
                return [road.send(leaf) for leaf in leaves]

        def work(leaves: list[Any]) -> tuple[list[torch.Tensor], list[Any], Any]:
            road.wait()
            args, options = self._arguments.built(leaves)
            with self._states.here(part.device), self._here(part):
                output = self._call(self.team.views[part.number].model, *args, **options)
            inputs = [leaves[number] for number in self._arguments.differentiable]
            return inputs, *leaves_of(output)

        def take(done: tuple[list[torch.Tensor], list[Any], Any]) -> Any:
            inputs, leaves, form = done
            with road.back():
                bare = [road.bring(_bare(leaf)) for leaf in leaves]
            return inputs, leaves, bare, form

        return ShardJob(give, work, take)

    def backward(
        self,
        gradients: Sequence[tuple[int, int | None, torch.Tensor]],
        needed: Sequence[bool],
        *,
        keep: bool,
    ) -> list[torch.Tensor | None]:
        """What of the gradients of outputs (leaf, dimension, gradient) arrives at each input, and
        then at each parameter."""
        self._begin()
        self._meeting = meeting = ReplicaBarrier(len(self._parts))
        for part in self._parts:
            part.meeting = meeting
        found = self._run(
            [self._backward_of(part, gradients, needed, keep=keep) for part in self._parts]
        )
        summed = self.team.sums([one for _, one in found])
        gathered = self._gathered([one for one, _ in found])
        self._tell()
        return [*gathered, *summed]

    def _backward_of(
        self,
        part: ReplicaContext,
        gradients: Sequence[tuple[int, int | None, torch.Tensor]],
        needed: Sequence[bool],
        *,
        keep: bool,
    ) -> ShardJob:
        begin, end = self._ranges[part.number]
        size, count = self._arguments.size, len(self._inputs[part.number])
        road = TransferStream(self.team.home, part.device)

        def give() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            outputs, given = [], []
            with road.there():
                for number, dim, gradient in gradients:
                    output = self._outputs[part.number][number]
                    if not output.requires_grad or (dim is None and part.number):
                        continue
                    outputs.append(output)
                    if dim is not None and dim != REDUCED:
                        each = gradient.size(dim) // size
                        gradient = gradient.narrow(dim, begin * each, (end - begin) * each)
                    if gradient.device != output.device:
                        gradient = road.send(gradient).to(output.device)
                    given.append(gradient)
            return outputs, given

        def work(
            both: tuple[list[torch.Tensor], list[torch.Tensor]],
        ) -> tuple[list[Any], Any]:
            outputs, given = both
            came = time.perf_counter()
            road.wait()
            part.meeting.waited[part.number] += time.perf_counter() - came
            every = [*self._inputs[part.number], *self.team.views[part.number].parameters]
            wanted = [one for one, need in zip(every, needed, strict=True) if need]
            if not outputs:
                part.meeting.leave(part.number)
                return [None] * count, [None] * (len(every) - count)
            # by this thread, whatever the device: autograd's own know nothing of parts
            with self._here(part), torch.autograd.set_multithreading_enabled(False):
                found = iter(
                    torch.autograd.grad(
                        outputs, wanted, given, retain_graph=keep, allow_unused=True
                    )
                )
            back = [next(found) if need else None for need in needed]
            return back[:count], self.team.packed(part.number, back[count:])

        def take(back: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
            of_inputs, of_parameters = back
            with road.back():
                of_inputs = [road.bring(one) for one in of_inputs]
                if isinstance(of_parameters, Packed):
                    of_parameters = of_parameters.fetched(road.bring)
            return of_inputs, of_parameters

        return ShardJob(give, work, take)

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
                gathered.append(added(found))
        return gathered


class CallerState:
    """What torch keeps for each thread: a replica has what the caller has.

    What the caller has for the model's device, a replica has for its own.
    """

    def __init__(self, home: torch.device) -> None:
        self._home = home
        self._gradients = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._default = default_device()
        casts = torch.amp.is_autocast_available(home.type) and torch.is_autocast_enabled(home.type)
        self.casts_to = torch.get_autocast_dtype(home.type) if casts else None
        """The type that autocast has operations computed in."""
        self._caches = torch.is_autocast_cache_enabled()

    def default(self, device: torch.device) -> AbstractContextManager[Any]:
        """Where tensors are made of which nothing is said, in a backward as well."""
        if self._default is None:
            return nullcontext()
        type_, index = self._home.type, self._home.index
        at_home = self._default.type == type_ and self._default.index in (None, index)
        return device if at_home else self._default

    def here(self, device: torch.device) -> ExitStack:
        """All else, in this thread."""
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(self._inference))
        stack.enter_context(torch.set_grad_enabled(self._gradients))
        if self.casts_to is not None:
            stack.enter_context(
                torch.autocast(device.type, self.casts_to, cache_enabled=self._caches)
            )
        return stack


def _bare(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


class ShardedFunction(torch.autograd.Function):
    """The call, as one step in the caller's graph."""

    @staticmethod
    def forward(
        ctx: Any, attempts: Attempts, together: OutputLayout, *_: torch.Tensor
    ) -> tuple[Any, ...]:
        ctx.attempts, ctx.together = attempts, together
        call = attempts.call
        ctx.set_materialize_grads(False)
        leaves = together.put(call.outputs)
        tensors = [
            (number, leaf) for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        ]
        ctx.numbers = [number for number, _ in tensors]
        ctx.mark_non_differentiable(*(leaf for number, leaf in tensors if not call.needs(number)))
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
        # what this backward does not go through, as a second head, may have one of its own
        has_more = any(
            gradient is None and ctx.attempts.call.needs(number)
            for number, gradient in zip(ctx.numbers, gradients, strict=True)
        )
        keep = has_more or torch._C._autograd._get_current_graph_task_keep_graph()
        found = ctx.attempts.backward(given, ctx.needs_input_grad[2:], keep=keep)
        return None, None, *found

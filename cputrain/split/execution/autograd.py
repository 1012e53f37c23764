"""The sharded forward of a batch and its backward, as one node of the caller's autograd graph."""

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
from cputrain.split.execution.replica_group import sum_in_order
from cputrain.split.execution.transfer import TransferStream
from cputrain.split.outputs import REDUCED, leaves_of
from cputrain.split.sync.barrier import ReplicaBarrier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.split.balance.concurrency import FastestCount
    from cputrain.split.batch import Arguments
    from cputrain.split.execution.oom_retry import Attempts
    from cputrain.split.execution.replica_group import ReplicaGroup
    from cputrain.split.outputs import OutputLayout
    from cputrain.split.sync.rng import SharedDraws

    Calls = Callable[..., Any]


class ShardJob:
    """The work of one shard in three steps, each given the result of the step before."""

    def __init__(
        self, send: Callable[[], Any], compute: Callable[[Any], Any], fetch: Callable[[Any], Any]
    ) -> None:
        self.send, self.compute, self.fetch = send, compute, fetch

    def run(self) -> Any:
        """Run the three steps in a row and return the result of the last."""
        return self.fetch(self.compute(self.send()))


class ShardedForward:
    """One forward divided into shards, and what its backward needs of it."""

    def __init__(
        self,
        group: ReplicaGroup,
        call: Calls,
        arguments: Arguments,
        sizes: Sequence[int],
        draws: SharedDraws,
        caller_state: CallerState | None = None,
        on_timed: Callable[[float, Sequence[float]], None] | None = None,
        proved: Collection[tuple[bool, ...]] | None = None,
    ) -> None:
        """Prepare a forward of `call` on `arguments`, divided into shards of `sizes` samples.

        Args:
            caller_state: Thread state that replicas run in; by default that of the calling thread.
            on_timed: Called after the backward with the elapsed seconds and each shard's own
                seconds without waiting. On a GPU, which runs asynchronously, the time that the
                caller spends between forward and backward is included.
            proved: Answers to questions about the whole batch that a proof covers; None for any.

        Raises:
            UnprovedError: From `forward`, for answers that are not in `proved`.
        """
        self.group = group
        self._call = call
        self._arguments = arguments
        self._ranges = ranges(sizes)
        concurrency = group.concurrency
        self._forward_count = None if concurrency is None else concurrency.forward
        self._backward_count = None if concurrency is None else concurrency.backward
        self._barrier = self._new_barrier(self._forward_count)
        self._contexts = [
            ReplicaContext(
                number, range_, arguments.size, self._barrier, draws,
                device=group.devices[number], is_multi_device=group.is_multi_device, proved=proved,
                parameters=None if group.is_multi_device else group.replicas[number].numbers,
            )
            for number, range_ in enumerate(self._ranges)
        ]  # fmt: skip
        self._on_timed = on_timed
        self._started_at = 0.0
        self._paused_at: float | None = None
        self._busy_s = [0.0] * len(sizes)
        self._stopwatches: list[tuple[int, Stopwatch]] = []
        self._caller_state = CallerState(group.home) if caller_state is None else caller_state
        self._inputs: list[list[torch.Tensor]] = []
        self._outputs: list[list[Any]] = []
        self.outputs: list[list[Any]] = []
        """Leaves of each shard's output, detached, on the model's device."""
        self.form: Any = None
        self.oom_shard: int | None = None
        """Index of the shard that ran out of memory on its device."""

    def forward(self) -> None:
        """Run the forward of every shard."""
        self._start_timer()
        self.group.refresh()
        started_at = time.perf_counter()
        results = self._run([self._forward_job(context) for context in self._contexts])
        if torch.is_grad_enabled():
            self._record(self._forward_count, started_at)
        self._inputs = [inputs for inputs, _, _, _ in results]
        self._outputs = [leaves for _, leaves, _, _ in results]
        self.outputs = [leaves for _, _, leaves, _ in results]
        self.form = results[0][3]
        for context in self._contexts:
            context.proved = None  # a checkpoint's recomputation has the same answers
        self._pause_timer()

    def _new_barrier(self, count: FastestCount | None) -> ReplicaBarrier:
        return ReplicaBarrier(len(self._ranges), None if count is None else count.count)

    def _record(self, count: FastestCount | None, started_at: float) -> None:
        """Record how long shards took, to find how many had better run at a time."""
        if count is not None:
            seconds = time.perf_counter() - started_at
            count.record(self._barrier.num_turns, seconds / self._arguments.size)

    def _start_timer(self) -> None:
        """Start the timer, or continue it when the backward begins."""
        if self._on_timed is None:
            return
        if self._paused_at is None:
            finish(self.group.home)
            self._started_at = time.perf_counter()
        elif self.group.home.type == "cpu":  # a GPU is still computing
            self._started_at += time.perf_counter() - self._paused_at

    def _pause_timer(self) -> None:
        """Remember when the forward ended: time until the backward is the caller's."""
        self._paused_at = time.perf_counter()

    def _report_times(self) -> None:
        """Report the elapsed time and the time each shard computed."""
        if self._on_timed is None:
            return
        finish(self.group.home)
        elapsed_s = time.perf_counter() - self._started_at
        self._pause_timer()
        for number, stopwatch in self._stopwatches:
            self._busy_s[number] += stopwatch.elapsed_s
        self._stopwatches.clear()
        self._on_timed(elapsed_s, self._busy_s)
        self._on_timed = None

    def _run(self, jobs: Sequence[ShardJob]) -> list[Any]:
        """Run one job for each shard and return the results in order.

        Where the model is not on the CPU, the caller makes all transfers, before the first job
        starts and after the last one ends: a copy made by a replica's thread could wait for all the
        work queued on the model's device. The caller's own OpenMP threads are idle meanwhile and
        are ended: replicas on the CPU are faster without them.
        """
        if not self.group.caller_transfers:
            guarded_jobs = [
                self._guarded(context, job.run)
                for context, job in zip(self._contexts, jobs, strict=True)
            ]
            return self.group.run(guarded_jobs, self._barrier)
        sent_inputs = []
        for context, job in zip(self._contexts, jobs, strict=True):
            with self._noting_oom(context):
                sent_inputs.append(job.send())
        compute_jobs = [
            self._guarded(context, partial(job.compute, value))
            for context, job, value in zip(self._contexts, jobs, sent_inputs, strict=True)
        ]
        if any(context.device.type == "cpu" for context in self._contexts):
            end_team()
        results = self.group.run(compute_jobs, self._barrier)
        return [job.fetch(value) for job, value in zip(jobs, results, strict=True)]

    def _guarded(self, context: ReplicaContext, job: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a job so that it runs in its device context and aborts the barrier if it fails."""

        def guarded() -> Any:
            barrier = context.barrier
            barrier.begin_turn()
            try:
                with (
                    self._noting_oom(context),
                    self.group.device_guard(context.device),
                    self._caller_state.default_device_context(context.device),
                ):
                    if self._on_timed is None:
                        return job()
                    stopwatch = Stopwatch(context.device)
                    result = job()
                    stopwatch.stop()
            except BaseException as error:
                barrier.abort()
                end_checkpoints(error)
                raise
            finally:
                barrier.end_turn()
            self._stopwatches.append((context.number, stopwatch))
            self._busy_s[context.number] -= barrier.waited_s[context.number]
            return result

        return guarded

    @contextmanager
    def _noting_oom(self, context: ReplicaContext) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            self.oom_shard = context.number
            raise

    @property
    def has_questions(self) -> bool:
        """Whether the model asked questions about the whole batch."""
        return any(context.answers for context in self._contexts)

    def drop_graph(self) -> None:
        """Drop the graphs and outputs kept for a backward."""
        self._inputs, self._outputs, self.outputs = [], [], []

    @property
    def has_graph(self) -> bool:
        """Whether any output requires a gradient."""
        return any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaves in self._outputs
            for leaf in leaves
        )

    def needs_grad(self, index: int) -> bool:
        """Return whether the output leaf of this index requires a gradient in any shard."""
        return any(leaves[index].requires_grad for leaves in self._outputs)

    def _entered(self, context: ReplicaContext) -> AbstractContextManager[Any]:
        """Return a context manager in which the thread computes this shard.

        For a single shard on the model's device that is no context: it calls torch's own functions.
        """
        return (
            nullcontext()
            if len(self._contexts) == 1 and not self.group.is_multi_device
            else context
        )

    def _forward_job(self, context: ReplicaContext) -> ShardJob:
        transfer = TransferStream(self.group.home, context.device)

        def send() -> list[Any]:
            with transfer.sending():
                self.group.update_parameters(self, context.number)
                leaves = self._arguments.part(self._ranges[context.number])
                return [transfer.send(leaf) for leaf in leaves]

        def compute(leaves: list[Any]) -> tuple[list[torch.Tensor], list[Any], Any]:
            transfer.wait()
            args, kwargs = self._arguments.built(leaves)
            with self._caller_state.enter(context.device), self._entered(context):
                output = self._call(self.group.replicas[context.number].model, *args, **kwargs)
            inputs = [leaves[number] for number in self._arguments.differentiable]
            return inputs, *leaves_of(output)

        def fetch(done: tuple[list[torch.Tensor], list[Any], Any]) -> Any:
            inputs, leaves, form = done
            with transfer.receiving():
                detached = [transfer.receive(_detached(leaf)) for leaf in leaves]
            return inputs, leaves, detached, form

        return ShardJob(send, compute, fetch)

    def backward(
        self,
        gradients: Sequence[tuple[int, int | None, torch.Tensor]],
        needed: Sequence[bool],
        *,
        keep: bool,
    ) -> list[torch.Tensor | None]:
        """Return the gradients of all inputs, then of all parameters.

        `gradients` holds (leaf index, batch dimension, gradient) for each output that has a
        gradient.
        """
        self._start_timer()
        self._barrier = barrier = self._new_barrier(self._backward_count)
        for context in self._contexts:
            context.barrier = barrier
        started_at = time.perf_counter()
        results = self._run(
            [
                self._backward_job(context, gradients, needed, keep=keep)
                for context in self._contexts
            ]
        )
        self._record(self._backward_count, started_at)
        parameter_gradients = self.group.sum_gradients(
            [shard_gradients for _, shard_gradients in results],
            frozenset().union(*(context.row_gradients for context in self._contexts)),
        )
        input_gradients = self._gather_input_gradients(
            [shard_gradients for shard_gradients, _ in results]
        )
        self._report_times()
        return [*input_gradients, *parameter_gradients]

    def _backward_job(
        self,
        context: ReplicaContext,
        gradients: Sequence[tuple[int, int | None, torch.Tensor]],
        needed: Sequence[bool],
        *,
        keep: bool,
    ) -> ShardJob:
        begin, end = self._ranges[context.number]
        size, count = self._arguments.size, len(self._inputs[context.number])
        transfer = TransferStream(self.group.home, context.device)

        def send() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            outputs, output_gradients = [], []
            with transfer.sending():
                for number, dim, gradient in gradients:
                    output = self._outputs[context.number][number]
                    if not output.requires_grad or (dim is None and context.number):
                        continue
                    outputs.append(output)
                    if dim is not None and dim != REDUCED:
                        rows_per_sample = gradient.size(dim) // size
                        gradient = gradient.narrow(
                            dim, begin * rows_per_sample, (end - begin) * rows_per_sample
                        )
                    if gradient.device != output.device:
                        gradient = transfer.send(gradient).to(output.device)
                    output_gradients.append(gradient)
            return outputs, output_gradients

        def compute(
            inputs: tuple[list[torch.Tensor], list[torch.Tensor]],
        ) -> tuple[list[Any], Any]:
            outputs, output_gradients = inputs
            started_at = time.perf_counter()
            transfer.wait()
            context.barrier.waited_s[context.number] += time.perf_counter() - started_at
            tensors = [
                *self._inputs[context.number],
                *self.group.replicas[context.number].parameters,
            ]
            wanted = [tensor for tensor, need in zip(tensors, needed, strict=True) if need]
            if not outputs:
                context.barrier.leave(context.number)
                return [None] * count, [None] * (len(tensors) - count)
            # in this thread for any device: autograd's threads have no ReplicaContext
            with self._entered(context), torch.autograd.set_multithreading_enabled(False):
                computed = iter(
                    torch.autograd.grad(
                        outputs, wanted, output_gradients, retain_graph=keep, allow_unused=True
                    )
                )
            gradients_back = [next(computed) if need else None for need in needed]
            return gradients_back[:count], self.group.pack_gradients(
                context.number, gradients_back[count:]
            )

        def fetch(gradients_back: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
            input_gradients, parameter_gradients = gradients_back
            with transfer.receiving():
                input_gradients = [transfer.receive(tensor) for tensor in input_gradients]
                if isinstance(parameter_gradients, Packed):
                    parameter_gradients = parameter_gradients.fetch(transfer.receive)
            return input_gradients, parameter_gradients

        return ShardJob(send, compute, fetch)

    def _gather_input_gradients(
        self, shard_gradients: Sequence[Sequence[Any]]
    ) -> list[torch.Tensor | None]:
        """Concatenate input gradients of sharded leaves; add up those of replicated leaves."""
        gathered: list[torch.Tensor | None] = []
        arguments = self._arguments
        for index, number in enumerate(arguments.differentiable):
            shards = [shard_gradient[index] for shard_gradient in shard_gradients]
            if all(gradient is None for gradient in shards):
                gathered.append(None)
            elif (dim := arguments.dims[number]) is not None:
                leaf = arguments.leaves[number]
                for shard, (begin, end) in enumerate(self._ranges):
                    if shards[shard] is None:
                        shards[shard] = torch.zeros_like(leaf.narrow(dim, begin, end - begin))
                gathered.append(torch.cat(shards, dim))
            else:
                gathered.append(sum_in_order(shards))
        return gathered


class CallerState:
    """Thread-local state of torch in the caller's thread, to be set in the replicas' threads.

    Autocast and the default device of the model's device are set for the replica's device.
    """

    def __init__(self, home: torch.device) -> None:
        self._home = home
        self._is_grad_enabled = torch.is_grad_enabled()
        self._is_inference_mode = torch.is_inference_mode_enabled()
        self._default_device = default_device()
        is_autocast = torch.amp.is_autocast_available(home.type) and torch.is_autocast_enabled(
            home.type
        )
        self.autocast_dtype = torch.get_autocast_dtype(home.type) if is_autocast else None
        """The dtype that autocast computes in; None where autocast is off."""
        self._is_cache_enabled = torch.is_autocast_cache_enabled()

    def default_device_context(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context manager that sets the caller's default device, in a backward as well."""
        if self._default_device is None:
            return nullcontext()
        type_, index = self._home.type, self._home.index
        is_home = self._default_device.type == type_ and self._default_device.index in (None, index)
        return device if is_home else self._default_device

    def enter(self, device: torch.device) -> ExitStack:
        """Enter inference mode, grad mode and autocast as in the caller's thread."""
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(self._is_inference_mode))
        stack.enter_context(torch.set_grad_enabled(self._is_grad_enabled))
        if self.autocast_dtype is not None:
            stack.enter_context(
                torch.autocast(
                    device.type, self.autocast_dtype, cache_enabled=self._is_cache_enabled
                )
            )
        return stack


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


class ShardedFunction(torch.autograd.Function):
    """A sharded call as one node of the caller's autograd graph."""

    @staticmethod
    def forward(
        ctx: Any, attempts: Attempts, layout: OutputLayout, *_: torch.Tensor
    ) -> tuple[Any, ...]:
        ctx.attempts, ctx.layout = attempts, layout
        call = attempts.call
        ctx.set_materialize_grads(False)
        leaves = layout.put(call.outputs)
        tensors = [
            (number, leaf) for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
        ]
        ctx.numbers = [number for number, _ in tensors]
        ctx.mark_non_differentiable(
            *(leaf for number, leaf in tensors if not call.needs_grad(number))
        )
        return tuple(leaf for _, leaf in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # they would look independent of the model
            raise DifferentiatedTwice(
                "the model",
                "gives no gradients that can be differentiated again while its batch is divided",
                found="create_graph=True",
                do="Call the model itself there, not the Split of it; or launch it without "
                "--replicas and --reproducible.",
            )
        output_gradients = [
            (number, ctx.layout.dims[number], gradient)
            for number, gradient in zip(ctx.numbers, gradients, strict=True)
            if gradient is not None
        ]
        # outputs without a gradient here, such as a second head, may get a backward of their own
        has_more = any(
            gradient is None and ctx.attempts.call.needs_grad(number)
            for number, gradient in zip(ctx.numbers, gradients, strict=True)
        )
        keep = has_more or torch._C._autograd._get_current_graph_task_keep_graph()
        input_gradients = ctx.attempts.backward(
            output_gradients, ctx.needs_input_grad[2:], keep=keep
        )
        return None, None, *input_gradients

"""Picks the path of each call of one model: sharded over replicas, or the model's own forward."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from contextlib import suppress
from functools import cache, partial

import torch

from cputrain.counting import counted
from cputrain.record import Record
from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.split.batch import DIMS, Arguments
from cputrain.split.devices import has_custom_stream, has_function_mode
from cputrain.split.execution.autograd import CallerState, ShardedForward, ShardedFunction
from cputrain.split.execution.context import UnprovedError
from cputrain.split.execution.executor import InlineExecutor, executor_on, is_replica_thread
from cputrain.split.execution.oom_retry import Attempts, OomRetry, Snapshot
from cputrain.split.execution.replica import DeviceFlatParams, Replica, home_of, shape_of
from cputrain.split.execution.replica_group import ReplicaGroup
from cputrain.split.proof.compare import ShardingSpec
from cputrain.split.proof.model_state import changes, objects_of, outline_of, structure
from cputrain.split.proof.read_names import ReadNames, kinds_of
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.search import FEWEST, RandomStates, find_sharding
from cputrain.split.proof.watch import CheckSchedule
from cputrain.split.sync import (
    batch_norm,
    decisions,
    embeddings,
    losses,
    random_functions,
    recurrent,
)
from cputrain.split.sync.rng import SharedDraws

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import nn

    from cputrain.machine import Cpus
    from cputrain.split.balance.auto_replicas import Choice, Sizes
    from cputrain.split.balance.concurrency import Concurrency
    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor
    from cputrain.split.proof.structural import Proof

    Places = list[tuple[Cpus, ...]]


MAX_KINDS = 32
"""Kinds of calls whose proofs are kept."""

MAX_REFUSALS = 3
"""Failed proofs in a row before proving stops: a model that changes in each call never passes."""

FREE_PROOFS = 8
CALLS_FOR_PROOF = 20
"""Sharded calls that pay for one more proof, after the free ones."""

MAX_STRUCTURES = 3
"""Model structures whose replicas are kept, such as those in training and in evaluation."""

MAX_SHORT_BATCHES = 3
"""Calls with too few samples along one dimension that are waited out before the next is tried."""

MAX_MESSAGE_CHARS = 200
"""Characters of an error message that are reported."""

EXIT_WAIT_S = 0.01
"""Seconds that autograd's threads get at exit."""

_jit: Any = torch.jit


class ProvedSharding(Record):
    """How calls of one kind are sharded, with the proof that they can be."""

    dim: int
    """Batch dimension of the first argument."""

    spec: ShardingSpec
    """How inputs, outputs and random draws are sharded."""

    proof: Proof
    """Proof that sharding gives the same result."""

    kept_alive: list[Any]
    """Objects whose ids are part of the kind, kept alive so that the ids stay unique."""


class Dispatcher:
    """Decides for each call of one model whether its batch is sharded, and runs it."""

    def __init__(
        self,
        model: nn.Module,
        places: dict[int, Places],
        choice: Choice,
        *,
        devices: Sequence[torch.device] = (),
        on_refused: Callable[[str], None] = lambda _: None,
        log: Callable[[str], None] = lambda _: None,
        falls_back: bool = False,
        checks: CheckSchedule | None = None,
        concurrency: Concurrency | None = None,
    ) -> None:
        """Prepare a dispatcher for a model.

        Args:
            model: The model, held by a weak reference.
            places: Cores of each replica, by number of replicas.
            choice: Picks the shard sizes.
            devices: Device of each replica; by default all replicas are on the CPU.
            on_refused: Called with the reason for which a batch is not sharded.
            log: Called with messages about changed limits.
            falls_back: Run the whole batch where a shard's forward fails.
            checks: When some samples of a batch are compared again.
            concurrency: How many replicas run at a time; by default all.
        """
        self._model_ref = weakref.ref(model)
        self._places = places
        self._choice = choice
        self._devices = tuple(devices)
        self._hooks = ModuleHooks(torch)
        self._on_refused = on_refused
        self._log = log
        self._falls_back = falls_back
        self._concurrency = concurrency
        self._owner = os.getpid()
        self._shardings: dict[Any, ProvedSharding | None] = {}
        self._last_outline: dict[str, Any] = {}
        """Attributes of the model at its last proof, by name."""
        self._read_names: ReadNames | None = None
        self.proof_s = 0.0
        """Seconds that the last proof took."""
        self._num_proofs = 0
        self._num_refusals = 0
        """Failed proofs in a row."""
        self._reported: set[str] = set()
        self._check_schedule = checks or CheckSchedule()
        self._replicas: dict[Any, list[Replica]] = {}
        self._flat_params: dict[torch.device, DeviceFlatParams] = {}
        self._executors: dict[int, Executor] = {}
        self._chosen_sizes: dict[Sizes, Sizes] = {}
        """Chosen shard sizes, by the sizes in use, which avoid shards of one sample."""
        self._timed_call: object = None
        """Identity of the last call that is timed."""
        self._num_short_batches: dict[Any, int] = {}
        self.refusal = ""
        """Why a kind of call is not sharded; empty where there is no such kind."""
        self.divided = 0
        """Number of calls that were sharded."""

    def __call__(self, call: Calls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, sharded if that is proved to give the same result."""
        if self._choice.is_undivided:
            self._release()
            return call(self._model, *args, **kwargs)
        trains = self._trains
        can_shard = (
            self._places
            and (trains or not self.is_measuring)
            and self._is_ordinary_call()
            and self._has_target()
        )
        if can_shard and self._has_sharding and (hooked := self._hooks.find(self._model)):
            # the hook was registered after the proof
            self._refuse(f"{hooked}, which would see parts of the batch")
            can_shard = False
        signature = shape_of(self._model, tensors=bool(self._devices)) if can_shard else None
        if signature is not None:
            signature = signature, structure(self._model, self._names())
        match = None if signature is None else self._sharding_of(call, args, kwargs, signature[1])
        if match is None:
            return call(self._model, *args, **kwargs)
        arguments, sharding = match
        spec = sharding.spec
        chosen_sizes = sizes = self._choice.sizes(arguments.size, trains=trains)
        if 1 in sizes and not self._can_shard_to_one(sharding, arguments):
            sizes = _without_ones(sizes)
        self._chosen_sizes = {sizes: chosen_sizes}
        if self._is_undivided(sizes) and not self.is_measuring:
            return call(self._model, *args, **kwargs)
        if (
            trains
            and self._check_schedule.is_due()
            and not self._still_holds(call, args, kwargs, sharding)
        ):
            return call(self._model, *args, **kwargs)
        if not self._falls_back and not sharding.proof.asks:
            return self._run_sharded(call, arguments, sharding, sizes, signature)
        snapshot = Snapshot(self._model, spec.changing)
        try:
            return self._run_sharded(call, arguments, sharding, sizes, signature)
        except UnprovedError:  # a question about this batch has an unproved answer
            snapshot.restore()
            if self._may_prove() and self._extend(sharding, arguments):
                with suppress(UnprovedError):
                    return self._run_sharded(call, arguments, sharding, sizes, signature)
                snapshot.restore()
            return call(self._model, *args, **kwargs)
        except Exception as error:  # the model's, which the whole batch raises again, or ours
            if not self._falls_back:
                raise
            fault = _one_line(error)
        snapshot.restore()
        output = call(self._model, *args, **kwargs)
        self.use_only(0)
        self._refuse(fault)
        return output

    def _names(self) -> ReadNames:
        """Return the names that the model may read, cached while its classes are the same."""
        if self._read_names is None or self._read_names.kinds != kinds_of(self._model):
            self._read_names = ReadNames(self._model)
        return self._read_names

    @property
    def _has_sharding(self) -> bool:
        """Whether calls of some kind are sharded."""
        return any(sharding is not None for sharding in self._shardings.values())

    def _is_undivided(self, sizes: Sizes) -> bool:
        """Return whether a single replica on the model's device has all samples."""
        nonempty = [number for number, size in enumerate(sizes) if size]
        return len(nonempty) == 1 and (
            not self._devices or self._devices[nonempty[0]] == home_of(self._model)
        )

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        if reason not in self._reported:
            self._reported.add(reason)
            self._on_refused(reason)

    @property
    def _model(self) -> nn.Module:
        model = self._model_ref()
        assert model is not None, "it is called by its model only"
        return model

    @property
    def _trains(self) -> bool:
        return torch.is_grad_enabled() and self._model.training

    @property
    def watch_s(self) -> float:
        """Seconds that the watch has spent comparing samples."""
        return self._check_schedule.seconds

    @property
    def is_measuring(self) -> bool:
        """Whether the shard sizes are still being measured."""
        return self._choice.is_measuring

    def use_only(self, count: int) -> None:
        """Keep the threads of `count` replicas only; 0 keeps none."""
        for unused in [num_replicas for num_replicas in self._places if num_replicas != count]:
            del self._places[unused]
            self._executors.pop(unused, None)

    def _release(self) -> None:
        """Free threads and memory while nothing is sharded."""
        if self._executors and os.getpid() == self._owner:
            self._replicas.clear()
            self._flat_params.clear()
            self._executors.clear()

    def _is_ordinary_call(self) -> bool:
        """Return whether this is an ordinary call, which no one observes operator by operator.

        Not so within a replica, a forked process, a backward, a checkpoint, a trace, a profiler, a
        dispatch or function mode, a functorch transform, a side stream or a graph capture.
        """
        return not (
            is_replica_thread()
            or os.getpid() != self._owner
            or torch._C._current_graph_task_id() != -1
            or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            or _jit.is_tracing()
            or torch._C._len_torch_dispatch_stack()
            or torch._C._autograd._profiler_enabled()  # which records this thread only
            or has_function_mode()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or any(map(has_custom_stream, {home_of(self._model), *self._devices}))
        )

    def _has_target(self) -> bool:
        """Return whether the CPU, or a device other than the model's, can compute shards."""
        home = home_of(self._model)
        return home.type == "cpu" or any(device != home for device in self._devices)

    def _sharding_of(
        self, call: Calls, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any
    ) -> tuple[Arguments, ProvedSharding] | None:
        first = Arguments(args, kwargs, DIMS[0])
        kind = (
            first.kind, structure, torch.is_grad_enabled(), home_of(self._model),
            CallerState(home_of(self._model)).autocast_dtype,
        )  # fmt: skip
        if kind not in self._shardings:
            if first.size < FEWEST:  # too few to prove anything: the next batch may have more
                if not any(isinstance(leaf, torch.Tensor) for leaf in first.leaves):
                    self._refuse("it is given no tensor that could be a batch")
                return None
            if not self._may_prove():
                return None
            self._prove(kind, call, args, kwargs)
        sharding = self._shardings.get(kind)
        if sharding is None:
            return None
        dim = sharding.dim
        arguments = first if dim == first.dim else Arguments(args, kwargs, dim)
        if arguments.size <= 1:
            return None
        if not sharding.proof.holds_for(arguments) and not self._extend(sharding, arguments):
            return None
        return arguments, sharding

    def _may_prove(self) -> bool:
        """Return whether another proof is worth its time; ever-changing models get none."""
        if self._num_refusals >= MAX_REFUSALS:
            return False
        outline = outline_of(self._model, self._names())
        differs = changes(self._last_outline, outline) if self._last_outline else []
        self._last_outline = outline
        if self._num_proofs < FREE_PROOFS or self.divided >= CALLS_FOR_PROOF * self._num_proofs:
            self._num_proofs += 1
            return True
        what = f"{differs[0]} is another" if differs else "it is called in another way"
        self._refuse(f"{what} in too many calls")
        return False

    def _can_shard_to_one(self, sharding: ProvedSharding, arguments: Arguments) -> bool:
        """Return whether the proof also holds for shards of one sample."""
        random_states = RandomStates(home_of(self._model))
        try:
            sharding.proof.extend_to_one(self._model, arguments)
        finally:
            random_states.restore()
        return not sharding.proof.needs_two_samples

    def _extend(self, sharding: ProvedSharding, arguments: Arguments) -> bool:
        """Extend the proof to a batch that it does not cover yet; return whether that worked."""
        kind = next(kind for kind, candidate in self._shardings.items() if candidate is sharding)
        random_states = RandomStates(home_of(self._model))
        try:
            sharding.proof.extend(self._model, arguments)
            if not sharding.proof.written <= sharding.spec.changing:
                raise CannotSplitError("it writes to other buffers in batches of another size")
        except CannotSplitError as refusal:
            self._shardings[kind] = None
            self._refuse(str(refusal))
            return False
        except Exception as error:  # the model raises it again, perhaps for this batch only
            self._num_refusals += 1
            if self._num_refusals >= MAX_REFUSALS:
                self._shardings[kind] = None
                self._refuse(_one_line(error))
            return False
        finally:
            random_states.restore()
        self._num_refusals = 0
        return True

    def _still_holds(
        self, call: Calls, args: tuple[Any, ...], kwargs: dict[str, Any], sharding: ProvedSharding
    ) -> bool:
        """Compare some samples of this batch, whole and sharded; return whether they agree."""
        with self._check_schedule.measured():
            arguments = Arguments(args, kwargs, sharding.dim).select(self._check_schedule.pick)
            try:
                find_sharding(
                    self._model, call, arguments, self._executor(next(iter(self._places))),
                    self._devices,
                )  # fmt: skip
            except torch.OutOfMemoryError:  # there may be enough memory next time
                return True
            except CannotSplitError as refusal:
                fault = str(refusal)
            except Exception as error:
                fault = _one_line(error)
            else:
                return True
        self._shardings = dict.fromkeys(self._shardings)
        self._refuse(f"from call {self.divided + 1} on: {fault}")
        return False

    def _prove(self, kind: Any, call: Calls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prove that calls of this kind can be sharded, or record why not. Raises nothing."""
        exchange()
        self._read_names = None  # objects that it refers to may have changed their class
        if self._devices:
            _begin_autograd()
        reasons = []
        executor = self._executor(next(iter(self._places)))
        started_at = time.perf_counter()
        for dim in DIMS:
            arguments = Arguments(args, kwargs, dim)
            if (
                0 < arguments.size < FEWEST
                and self._num_short_batches.get(kind, 0) < MAX_SHORT_BATCHES
            ):
                self._num_short_batches[kind] = self._num_short_batches.get(kind, 0) + 1
                return  # this may be the batch dimension: a larger batch will show
            if arguments.size < FEWEST:
                continue
            try:
                proof, spec = find_sharding(self._model, call, arguments, executor, self._devices)
                kept_alive = objects_of(self._model)
                self._shardings[kind] = ProvedSharding(
                    dim=dim, spec=spec, proof=proof, kept_alive=kept_alive
                )
                self._evict_shardings()
                self._num_refusals = 0
                self.proof_s = time.perf_counter() - started_at
                self._check_schedule.begin(self.proof_s)
                return
            except CannotSplitError as refusal:
                reasons.append(str(refusal))
            except Exception as error:  # (it cannot run on a single shard: reported below)
                reasons.append(_one_line(error))
        self._shardings[kind] = None
        self._evict_shardings()
        self._num_refusals += 1
        self._refuse(reasons[0])

    def _evict_shardings(self) -> None:
        """Evict the oldest kinds: a model that was changed is seldom changed back."""
        while len(self._shardings) > MAX_KINDS:
            del self._shardings[next(iter(self._shardings))]

    def _run_sharded(
        self,
        call: Calls,
        arguments: Arguments,
        sharding: ProvedSharding,
        sizes: Sizes,
        signature: Any,
    ) -> Any:
        spec, caller_state = sharding.spec, CallerState(home_of(self._model))
        new_forward = partial(self._new_forward, call, arguments, sharding, signature, caller_state)
        retry = None
        if self._devices:
            shrink = partial(self._shrink, trains=self._trains)
            retry = OomRetry(self._model, spec.changing, arguments.leaves, shrink)
        current = Attempts(new_forward, sizes, retry)
        current.forward()
        forward = current.call
        forward.group.write_back()
        # a call that differs from what was proved is proved again
        if forward.has_questions and not sharding.proof.asks:
            self._shardings = {
                kind: current
                for kind, current in self._shardings.items()
                if current is not sharding
            }
        self.divided += sum(map(bool, sizes)) > 1
        wanted = [arguments.leaves[number] for number in arguments.differentiable]
        leaves = forward.outputs[0]
        if forward.has_graph:
            apply: Any = ShardedFunction.apply
            tensors = iter(apply(current, spec.together, *wanted, *self._model.parameters()))
            output_leaves = [
                next(tensors) if isinstance(leaf, torch.Tensor) and shared is None else leaf
                for leaf, shared in zip(leaves, spec.together.shared, strict=True)
            ]
        else:
            output_leaves = spec.together.put(forward.outputs)
        return forward.form.rebuild(spec.together.share(output_leaves))

    def _new_forward(
        self,
        call: Calls,
        arguments: Arguments,
        sharding: ProvedSharding,
        signature: Any,
        caller_state: CallerState,
        sizes: Sizes,
    ) -> ShardedForward:
        """Prepare a sharded forward with these shard sizes."""
        spec = sharding.spec
        group = self._group(sizes, spec, signature)
        on_timed = self._time_listener(sizes) if self._choice.needs_times and self._trains else None
        nonempty_sizes = [size for size in sizes if size]
        draws = SharedDraws(len(nonempty_sizes), spec.draws, group.home)
        proved = sharding.proof.answers if sharding.proof.asks else None
        return ShardedForward(
            group, call, arguments, nonempty_sizes, draws, caller_state, on_timed, proved
        )

    def _time_listener(self, sizes: Sizes) -> Callable[[float, Sequence[float]], None]:
        """Return a callback for the times of the call that starts now.

        Times are dropped if another call starts before this one's backward: they would include it.
        """
        self._timed_call = timed_call = object()
        chosen_sizes = self._chosen_sizes.get(sizes, sizes)

        def on_timed(elapsed_s: float, busy_s: Sequence[float]) -> None:
            if self._timed_call is timed_call:
                remaining = iter(busy_s)
                busy_by_replica = [next(remaining) if size else 0.0 for size in sizes]
                nonempty_busy_s = [
                    replica_busy_s
                    for replica_busy_s, size in zip(busy_by_replica, chosen_sizes, strict=True)
                    if size
                ]
                self._choice.record(chosen_sizes, elapsed_s, nonempty_busy_s)

        return on_timed

    def _shrink(self, sizes: Sizes, shard: int, *, trains: bool) -> Sizes | None:
        """Halve a device's shard after it ran out of memory; return the new sizes."""
        number = [number for number, size in enumerate(sizes) if size][shard]
        size, limit = sizes[number], sizes[number] // 2
        if not self._choice.limit(number, limit):
            return None
        self._log(
            f"{self._devices[number]} has no memory for {counted(size, 'sample')}: it has {limit} "
            "at most from now on"
        )
        return self._choice.sizes(sum(sizes), trains=trains)

    def _group(self, sizes: Sizes, spec: ShardingSpec, signature: Any) -> ReplicaGroup:
        """Return the replicas that have samples, with their threads."""
        home = home_of(self._model)
        devices = self._devices or (home,) * len(sizes)
        replicas = self._current_replicas((signature, spec.changing), spec, devices, home)
        numbers = [number for number, size in enumerate(sizes) if size]
        executor = InlineExecutor() if len(sizes) == 1 else self._executor(len(sizes)).some(numbers)
        group_replicas = [replicas[number] for number in numbers]
        group_devices = [devices[number] for number in numbers]
        return ReplicaGroup(executor, group_replicas, home, group_devices, self._concurrency)

    def _executor(self, count: int) -> Executor:
        """Return the threads for `count` replicas; cached, as starting them outlasts a step."""
        num_threads = min(number for number in self._places if number >= count)
        executor = self._executors.get(num_threads)
        if executor is None:
            executor = self._executors[num_threads] = executor_on(self._places[num_threads])
        return executor

    def _current_replicas(
        self,
        signature: Any,
        spec: ShardingSpec,
        devices: Sequence[torch.device],
        home: torch.device,
    ) -> list[Replica]:
        replicas = self._replicas.pop(signature, [])
        self._replicas[signature] = replicas  # in order of last use
        if len(self._replicas) > MAX_STRUCTURES:
            del self._replicas[next(iter(self._replicas))]
        # replicas are also for training, even if first used for inference
        with torch.inference_mode(False):
            for device in devices[len(replicas) :]:
                is_first = device == home and home not in devices[: len(replicas)]
                flat_params = (
                    None if device == home else self._flat_params_on(device, spec.changing)
                )
                replicas.append(
                    Replica(self._model, spec.changing, is_first=is_first, flat_params=flat_params)
                )
        return replicas

    def _flat_params_on(self, device: torch.device, changing: frozenset[str]) -> DeviceFlatParams:
        """Return a device's flat parameters, new ones if the model has changed."""
        flat_params = self._flat_params.get(device)
        if flat_params is None or not flat_params.are_of(self._model, changing):
            flat_params = self._flat_params[device] = DeviceFlatParams(
                self._model, changing, device
            )
        return flat_params


def _without_ones(sizes: Sizes) -> Sizes:
    """Return shard sizes of which none is 1: the largest shard gives a sample, or takes one."""
    result = list(sizes)
    for number, size in enumerate(sizes):
        if size == 1:
            largest = max(range(len(result)), key=result.__getitem__)
            result[number], change = (2, -1) if result[largest] > 2 else (0, 1)
            result[largest] += change
    return tuple(result)


@cache
def _begin_autograd() -> None:
    """Start autograd's threads from the caller's thread, as threads inherit affinity.

    At exit such a thread may still wait for the GIL to free what a backward saved, which would
    crash the process; a short sleep in atexit lets it finish.
    """
    with torch.inference_mode(False), torch.enable_grad():
        scalar = torch.ones((), requires_grad=True)
        torch.autograd.grad(scalar * 2, scalar)
    atexit.register(time.sleep, EXIT_WAIT_S)


def _one_line(error: Exception) -> str:
    """Return an error as one line; torch's own can have a hundred."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text[:MAX_MESSAGE_CHARS]}{'…' * (len(text) > MAX_MESSAGE_CHARS)}"
    )


_patches: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


def exchange() -> None:
    """Replace functions that work on the whole batch by versions that are aware of shards.

    Functions of libraries are replaced once the library has been imported.
    """
    from cputrain.runtime.patching import Patch

    with _lock:
        for place, name, make_patched in (
            *random_functions.replacements(),
            *recurrent.replacements(),
            *batch_norm.replacements(),
            *embeddings.replacements(),
            *losses.replacements(),
            *decisions.replacements(),
        ):
            if (id(place), name) not in _patches:
                patched = make_patched(getattr(place, name))
                _patches[id(place), name] = Patch(place, name, patched)

"""Divides the calls of one model among replicas, and leaves it alone where that would not do."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from contextlib import suppress
from functools import cache, partial

import torch

from cputrain.record import Record
from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.split.batch import DIMS, Arguments
from cputrain.split.devices import is_elsewhere, is_watched
from cputrain.split.execution.autograd import CallerState, ShardedForward, ShardedFunction
from cputrain.split.execution.context import UnprovedError
from cputrain.split.execution.executor import InlineExecutor, executor_on, within
from cputrain.split.execution.oom_retry import Attempts, Kept, OomRetry
from cputrain.split.execution.replica import DeviceFlatParams, Replica, home_of, shape_of
from cputrain.split.execution.replica_group import ReplicaGroup
from cputrain.split.proof.compare import ShardingSpec
from cputrain.split.proof.model_state import changes, objects_of, outline_of, structure
from cputrain.split.proof.read_names import ReadNames, kinds_of
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.proof.search import FEWEST, Numbers, find_sharding
from cputrain.split.proof.watch import Watch
from cputrain.split.sync import batch_norm, decisions, losses, random_functions
from cputrain.split.sync.rng import SharedDraws

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import nn

    from cputrain.machine import Cpus
    from cputrain.split.balance.auto_replicas import Choice, Sizes
    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor
    from cputrain.split.proof.structural import Proof

    Places = list[tuple[Cpus, ...]]


KINDS = 32
"""Kinds of calls whose proofs are kept."""

MAX_REFUSALS = 3
"""Proofs in a row that may fail: one that is refused as it sets attributes differs in each call."""

FREE_PROOFS = 8
CALLS_FOR_PROOF = 20
"""Divided calls that pay for one more proof, beyond the free ones."""

SHAPES = 3
"""Views are kept for so many: a model in training, and in evaluation."""

TRIES = 3
"""Calls that are waited for because one dimension is too short to tell."""

LONGEST = 200
"""Characters of an error that are told."""

ENDING = 0.01
"""Seconds for autograd's threads when a script has ended."""

_jit: Any = torch.jit


class ProvedSharding(Record):
    """What is known of calls of one kind."""

    dim: int
    """The dimension of the first argument along which samples lie."""

    way: ShardingSpec
    """How the batch is divided."""

    proof: Proof
    """That it can be."""

    held: list[Any]
    """Objects by whose ids the kind is known."""


class Dispatcher:
    """What is known of one model."""

    def __init__(
        self,
        model: nn.Module,
        places: dict[int, Places],
        choice: Choice,
        *,
        devices: Sequence[torch.device] = (),
        tell: Callable[[str], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
        falls_back: bool = False,
    ) -> None:
        """With `devices`, there is one for each replica; else all of them are on the CPU.

        `tell` hears why a call is left alone, `say` of what has changed.

        One that `falls_back` runs the whole batch where a part fails in its forward.
        """
        self._known = weakref.ref(model)
        self._places = places
        self._choice = choice
        self._devices = tuple(devices)
        self._hooks = ModuleHooks(torch)
        self._tell = tell
        self._say = say
        self._falls_back = falls_back
        self._owner = os.getpid()
        self._ways: dict[Any, ProvedSharding | None] = {}
        self._outline: dict[str, Any] = {}
        """What the model was when it was proved last, by name."""
        self._read: ReadNames | None = None
        self.proof_seconds = 0.0
        """That the last proof has taken."""
        self._num_proofs = 0
        self._num_refusals = 0
        """Proofs in a row that have failed."""
        self._told: set[str] = set()
        self._watch = Watch()
        self._views: dict[Any, list[Replica]] = {}
        self._mirrors: dict[torch.device, DeviceFlatParams] = {}
        self._crews: dict[int, Executor] = {}
        self._instead: dict[Sizes, Sizes] = {}
        """The sizes that were chosen, by those that the last call has instead: without ones."""
        self._begun: object = None
        """The last call that was measured."""
        self._tries: dict[Any, int] = {}
        self.refused = ""
        """Why a kind of call is left alone; empty where none is."""
        self.divided = 0
        """Calls that were."""

    def __call__(self, call: Calls, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The model's call, divided if that gives the same."""
        if self._choice.settled:
            self._rest()
            return call(self._model, *args, **options)
        trains = self._trains
        may = self._places and (trains or not self.measures) and self._may() and self._is_for()
        if may and self._divides and (hooked := self._hooks.find(self._model)):
            self._refuse(f"{hooked}, which would see parts of the batch")  # registered since
            may = False
        shape = shape_of(self._model, tensors=bool(self._devices)) if may else None
        if shape is not None:
            shape = shape, structure(self._model, self._names())
        found = None if shape is None else self._way(call, args, options, shape[1])
        if found is None:
            return call(self._model, *args, **options)
        arguments, known = found
        way = known.way
        chosen = sizes = self._choice.sizes(arguments.size, trains=trains)
        if 1 in sizes and not self._can_have_one(known, arguments):
            sizes = _without_ones(sizes)
        self._instead = {sizes: chosen}
        if self._is_undivided(sizes) and not self.measures:
            return call(self._model, *args, **options)
        if trains and self._watch.is_due() and not self._still_holds(call, args, options, known):
            return call(self._model, *args, **options)
        if not self._falls_back and not known.proof.asks:
            return self._divided(call, arguments, known, sizes, shape)
        before = Kept(self._model, way.changing)
        try:
            return self._divided(call, arguments, known, sizes, shape)
        except UnprovedError:  # a batch of which a question has another answer
            before.put_back()
            if self._may_prove() and self._extend(known, arguments):
                with suppress(UnprovedError):
                    return self._divided(call, arguments, known, sizes, shape)
                before.put_back()
            return call(self._model, *args, **options)
        except Exception as error:  # the model's own, which the whole raises again; or ours
            if not self._falls_back:
                raise
            fault = _short(error)
        before.put_back()
        whole = call(self._model, *args, **options)
        self.use_only(0)
        self._refuse(fault)
        return whole

    def _names(self) -> ReadNames:
        """Return the names that the model may read: the same as long as its classes are."""
        if self._read is None or self._read.kinds != kinds_of(self._model):
            self._read = ReadNames(self._model)
        return self._read

    @property
    def _divides(self) -> bool:
        """Whether calls of some kind are divided."""
        return any(known is not None for known in self._ways.values())

    def _is_undivided(self, sizes: Sizes) -> bool:
        """Whether a single replica has all of it, where the model is."""
        having = [number for number, size in enumerate(sizes) if size]
        return len(having) == 1 and (
            not self._devices or self._devices[having[0]] == home_of(self._model)
        )

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        if reason not in self._told:
            self._told.add(reason)
            self._tell(reason)

    @property
    def _model(self) -> nn.Module:
        model = self._known()
        assert model is not None, "it is called by its model only"
        return model

    @property
    def _trains(self) -> bool:
        return torch.is_grad_enabled() and self._model.training

    @property
    def watch_seconds(self) -> float:
        """Seconds that the watch has compared samples for."""
        return self._watch.seconds

    @property
    def measures(self) -> bool:
        """Whether it is not known yet how it is divided best."""
        return self._choice.measures

    def use_only(self, count: int) -> None:
        """The other numbers are not needed any more; 0 leaves none."""
        for other in [one for one in self._places if one != count]:
            del self._places[other]
            self._crews.pop(other, None)

    def _rest(self) -> None:
        """Threads and memory are for others, as long as nothing is divided."""
        if self._crews and os.getpid() == self._owner:
            self._views.clear()
            self._mirrors.clear()
            self._crews.clear()

    def _may(self) -> bool:
        """Whether this is a call of the script's own, and nobody watches single operations.

        A checkpoint around it does, and what it computes again in a backward.
        """
        return not (
            within()
            or os.getpid() != self._owner
            or torch._C._current_graph_task_id() != -1
            or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            or _jit.is_tracing()
            or torch._C._len_torch_dispatch_stack()
            or torch._C._autograd._profiler_enabled()  # which hears of this thread alone
            or is_watched()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or any(map(is_elsewhere, {home_of(self._model), *self._devices}))
        )

    def _is_for(self) -> bool:
        """Whether there is a CPU, or another device than the model's, to divide for."""
        home = home_of(self._model)
        return home.type == "cpu" or any(device != home for device in self._devices)

    def _way(
        self, call: Calls, args: tuple[Any, ...], options: dict[str, Any], structure: Any
    ) -> tuple[Arguments, ProvedSharding] | None:
        first = Arguments(args, options, DIMS[0])
        kind = (
            first.kind, structure, torch.is_grad_enabled(), home_of(self._model),
            CallerState(home_of(self._model)).casts_to,
        )  # fmt: skip
        if kind not in self._ways:
            if first.size < FEWEST:  # too few to tell: perhaps there are more next time
                if not any(isinstance(leaf, torch.Tensor) for leaf in first.leaves):
                    self._refuse("it is given no tensor that could be a batch")
                return None
            if not self._may_prove():
                return None
            self._find(kind, call, args, options)
        known = self._ways.get(kind)
        if known is None:
            return None
        dim = known.dim
        arguments = first if dim == first.dim else Arguments(args, options, dim)
        if arguments.size <= 1:
            return None
        if not known.proof.holds_for(arguments) and not self._extend(known, arguments):
            return None
        return arguments, known

    def _may_prove(self) -> bool:
        """Whether another proof is worth its time; a model that differs in every call has none."""
        if self._num_refusals >= MAX_REFUSALS:
            return False
        outline = outline_of(self._model, self._names())
        differs = changes(self._outline, outline) if self._outline else []
        self._outline = outline
        if self._num_proofs < FREE_PROOFS or self.divided >= CALLS_FOR_PROOF * self._num_proofs:
            self._num_proofs += 1
            return True
        what = f"{differs[0]} is another" if differs else "it is called in another way"
        self._refuse(f"{what} in too many calls")
        return False

    def _can_have_one(self, known: ProvedSharding, arguments: Arguments) -> bool:
        """Whether shards of one sample are proved as well."""
        numbers = Numbers(home_of(self._model))
        try:
            known.proof.extend_to_one(self._model, arguments)
        finally:
            numbers.put_back()
        return not known.proof.needs_two_samples

    def _extend(self, known: ProvedSharding, arguments: Arguments) -> bool:
        """Prove a way for a batch that is unlike those before."""
        kind = next(kind for kind, other in self._ways.items() if other is known)
        numbers = Numbers(home_of(self._model))
        try:
            known.proof.extend(self._model, arguments)
            if not known.proof.written <= known.way.changing:
                raise CannotSplitError("it writes to other buffers in batches of another size")
        except CannotSplitError as refusal:
            self._ways[kind] = None
            self._refuse(str(refusal))
            return False
        except Exception as error:  # which the model raises once more, perhaps for this batch alone
            self._num_refusals += 1
            if self._num_refusals >= MAX_REFUSALS:
                self._ways[kind] = None
                self._refuse(_short(error))
            return False
        finally:
            numbers.put_back()
        self._num_refusals = 0
        return True

    def _still_holds(
        self, call: Calls, args: tuple[Any, ...], options: dict[str, Any], known: ProvedSharding
    ) -> bool:
        """Compare some samples of this batch once more, whole and divided."""
        with self._watch.measured():
            arguments = Arguments(args, options, known.dim).some(self._watch.pick)
            try:
                find_sharding(
                    self._model, call, arguments, self._crew(next(iter(self._places))),
                    self._devices,
                )  # fmt: skip
            except torch.OutOfMemoryError:  # of which the next watch may have enough
                return True
            except CannotSplitError as refusal:
                fault = str(refusal)
            except Exception as error:
                fault = _short(error)
            else:
                return True
        self._ways = dict.fromkeys(self._ways)
        self._refuse(f"from call {self.divided + 1} on: {fault}")
        return False

    def _find(self, kind: Any, call: Calls, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Raises nothing: what cannot be divided is called as it is."""
        exchange()
        self._read = None  # objects that it holds may be of other classes than before
        if self._devices:
            _begin_autograd()
        reasons = []
        crew = self._crew(next(iter(self._places)))
        begin = time.perf_counter()
        for dim in DIMS:
            arguments = Arguments(args, options, dim)
            if 0 < arguments.size < FEWEST and self._tries.get(kind, 0) < TRIES:
                self._tries[kind] = self._tries.get(kind, 0) + 1
                return  # it may be this one, and shows with more samples
            if arguments.size < FEWEST:
                continue
            try:
                proof, way = find_sharding(self._model, call, arguments, crew, self._devices)
                held = objects_of(self._model)
                self._ways[kind] = ProvedSharding(dim=dim, way=way, proof=proof, held=held)
                self._forget_ways()
                self._num_refusals = 0
                self.proof_seconds = time.perf_counter() - begin
                self._watch.begin(self.proof_seconds)
                return
            except CannotSplitError as refusal:
                reasons.append(str(refusal))
            except Exception as error:  # (a part alone does not fit it: told below)
                reasons.append(_short(error))
        self._ways[kind] = None
        self._forget_ways()
        self._num_refusals += 1
        self._refuse(reasons[0])

    def _forget_ways(self) -> None:
        """Keep the last few: a model that was changed is seldom changed back."""
        while len(self._ways) > KINDS:
            del self._ways[next(iter(self._ways))]

    def _divided(
        self, call: Calls, arguments: Arguments, known: ProvedSharding, sizes: Sizes, shape: Any
    ) -> Any:
        way, states = known.way, CallerState(home_of(self._model))
        make = partial(self._call, call, arguments, known, shape, states)
        again = None
        if self._devices:
            smaller = partial(self._smaller, trains=self._trains)
            again = OomRetry(self._model, way.changing, arguments.leaves, smaller)
        one = Attempts(make, sizes, again)
        one.forward()
        done = one.call
        done.team.write_back()
        if done.asked and not known.proof.asks:  # something else than was proved: once more
            self._ways = {kind: one for kind, one in self._ways.items() if one is not known}
        self.divided += sum(map(bool, sizes)) > 1
        wanted = [arguments.leaves[number] for number in arguments.differentiable]
        leaves = done.outputs[0]
        if done.has_graph:
            apply: Any = ShardedFunction.apply
            found = iter(apply(one, way.together, *wanted, *self._model.parameters()))
            whole = [
                next(found) if isinstance(leaf, torch.Tensor) and shared is None else leaf
                for leaf, shared in zip(leaves, way.together.shared, strict=True)
            ]
        else:
            whole = way.together.put(done.outputs)
        return done.form.built(way.together.share(whole))

    def _call(
        self,
        call: Calls,
        arguments: Arguments,
        known: ProvedSharding,
        shape: Any,
        states: CallerState,
        sizes: Sizes,
    ) -> ShardedForward:
        """All that the forward needs."""
        way = known.way
        team = self._team(sizes, way, shape)
        took = self._measured(sizes) if self._choice.listens and self._trains else None
        each = [size for size in sizes if size]
        draws = SharedDraws(len(each), way.draws, team.home)
        proved = known.proof.answers if known.proof.asks else None
        return ShardedForward(team, call, arguments, each, draws, states, took, proved)

    def _measured(self, sizes: Sizes) -> Callable[[float, Sequence[float]], None]:
        """Hears how long a call was, which has begun; unless another begins before its backward:
        that one's time is a part of its own."""
        self._begun = begun = object()
        chosen = self._instead.get(sizes, sizes)

        def took(seconds: float, busy: Sequence[float]) -> None:
            if self._begun is begun:
                left = iter(busy)
                each = [next(left) if size else 0.0 for size in sizes]
                having = [one for one, size in zip(each, chosen, strict=True) if size]
                self._choice.took(chosen, seconds, having)

        return took

    def _smaller(self, sizes: Sizes, part: int, *, trains: bool) -> Sizes | None:
        """With less for a device from now on; once."""
        number = [number for number, size in enumerate(sizes) if size][part]
        size, most = sizes[number], sizes[number] // 2
        if not self._choice.limit(number, most):
            return None
        self._say(
            f"{self._devices[number]} has no memory for {size} samples: it has {most} at most "
            "from now on"
        )
        return self._choice.sizes(sum(sizes), trains=trains)

    def _team(self, sizes: Sizes, way: ShardingSpec, shape: Any) -> ReplicaGroup:
        """Who has samples."""
        home = home_of(self._model)
        devices = self._devices or (home,) * len(sizes)
        views = self._current((shape, way.changing), way, devices, home)
        numbers = [number for number, size in enumerate(sizes) if size]
        crew = InlineExecutor() if len(sizes) == 1 else self._crew(len(sizes)).some(numbers)
        mine = [views[number] for number in numbers]
        return ReplicaGroup(crew, mine, home, [devices[number] for number in numbers])

    def _crew(self, count: int) -> Executor:
        """Threads for so many; kept, as starting them takes longer than a step."""
        enough = min(number for number in self._places if number >= count)
        crew = self._crews.get(enough)
        if crew is None:
            crew = self._crews[enough] = executor_on(self._places[enough])
        return crew

    def _current(
        self, shape: Any, way: ShardingSpec, devices: Sequence[torch.device], home: torch.device
    ) -> list[Replica]:
        views = self._views.pop(shape, [])
        self._views[shape] = views  # the last one used is the last one in
        if len(self._views) > SHAPES:
            del self._views[next(iter(self._views))]
        with torch.inference_mode(False):  # these are for training, too, whoever calls first
            for device in devices[len(views) :]:
                first = device == home and home not in devices[: len(views)]
                mirrors = None if device == home else self._mirrors_on(device, way.changing)
                views.append(Replica(self._model, way.changing, first=first, mirrors=mirrors))
        return views

    def _mirrors_on(self, device: torch.device, changing: frozenset[str]) -> DeviceFlatParams:
        """Those that there are, while the model has the same parameters and buffers."""
        known = self._mirrors.get(device)
        if known is None or not known.are_of(self._model, changing):
            known = self._mirrors[device] = DeviceFlatParams(self._model, changing, device)
        return known


def _without_ones(sizes: Sizes) -> Sizes:
    """Return shard sizes of which none is 1: the largest shard gives a sample, or takes one."""
    found = list(sizes)
    for number, size in enumerate(sizes):
        if size == 1:
            largest = max(range(len(found)), key=found.__getitem__)
            found[number], given = (2, -1) if found[largest] > 2 else (0, 1)
            found[largest] += given
    return tuple(found)


@cache
def _begin_autograd() -> None:
    """Threads that autograd starts with its first backward inherit cores: not a replica's.

    When a script ends, one may still wait for the interpreter's lock, to let go of what torch keeps
    with a backward; it would take the process along. So it gets the lock once more.
    """
    with torch.inference_mode(False), torch.enable_grad():
        one = torch.ones((), requires_grad=True)
        torch.autograd.grad(one * 2, one)
    atexit.register(time.sleep, ENDING)


def _short(error: Exception) -> str:
    """An error in a line; torch's own can have a hundred."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:LONGEST]}{'…' * (len(text) > LONGEST)}"


_exchanged: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


def exchange() -> None:
    """Functions that work on the whole batch know from now on when they are given a part of it.

    Those of libraries as soon as they are imported.
    """
    from cputrain.runtime.patching import Patch

    with _lock:
        for place, name, ours_of in (
            *random_functions.replacements(),
            *batch_norm.replacements(),
            *losses.replacements(),
            *decisions.replacements(),
        ):
            if (id(place), name) not in _exchanged:
                ours = ours_of(getattr(place, name))
                _exchanged[id(place), name] = Patch(place, name, ours)

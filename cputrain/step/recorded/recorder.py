"""Records forward and backward of a script's loop, and runs them as one compiled function."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from cputrain.runtime.effects import effect_of
from cputrain.runtime.root_forward import within_call
from cputrain.step.background import only_tracer, wait_for
from cputrain.step.contest import Contest
from cputrain.step.model_tensors import CompileError, ModelTensors
from cputrain.step.recorded.arguments import (
    UnrecordableError,
    describe,
    holds_tensor,
    new_tensors,
    restore,
)
from cputrain.step.recorded.compiling import compile_ending, compile_reading
from cputrain.step.recorded.deferred import (
    DeferredTensor,
    become,
    fill,
    real_of,
    set_numbers,
    value_of,
)
from cputrain.step.recorded.functions import (
    LAYOUT_READERS,
    NEED_NO_GRAPH,
    VALUE_READERS,
    describe_layout,
    name_of,
)
from cputrain.step.recorded.path import CallKey, Ending, Path
from cputrain.step.recorded.proof import GradientProof, is_read_value
from cputrain.step.recorded.region import Region
from cputrain.step.recorded.unseen import NEVER_RECORDED, computed
from cputrain.step.script_reach import functions_of
from cputrain.step.torch_state import in_modes, torch_modes, torch_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.step.recorded.path import RecordedFunction

NUM_SEEN = 3
"""How often the same calls are seen before they are compiled."""

MAX_COMPILED = 8
"""Number of paths that are compiled."""

MAX_CALLS = 300
"""Number of calls of a region, above which it is not compiled: they may be a whole episode."""

MAX_PATHS = 3000
"""Number of paths seen, after which those that are not compiled are seen anew."""

MAX_STATES = 8
"""Number of states of a model, such as its values in training and in evaluation."""

MAX_REFUSED = 20
"""Number of regions in a row that cannot be compiled, until recording ends."""

MAX_FAILED = 3
"""Number of proofs that may fail: where a network is trained to the end, gradients are rounding."""

MAX_SECONDS = 0.02
"""Largest time of a region that is compiled: in longer ones, little of it is Python."""

BACKWARD = Tensor.backward

UNSUPPORTED_MODULES = ("torch.nn.parallel", "torch.distributed", "torch._dynamo", "cputrain.split")
"""Modules whose classes call a model in ways of their own."""

CHANGED = (
    "A parameter or a tensor of the batch was modified by an inplace operation between the call of "
    "the model and backward, for the first time. cputrain had deferred the call. Run the script "
    "with --record-step off."
)
"""What is raised where a script first does what no deferred call can follow."""


class Recorder:
    """Regions of one thread: those that are compiled, and why others are not.

    Args:
        after_seconds: Seconds of training before calls are recorded. Compiling takes seconds, which
            a script that is soon over would not get back.
    """

    def __init__(self, *, after_seconds: float = 0.0) -> None:
        self._thread = threading.get_ident()
        self._after_seconds = after_seconds
        self._trained_since = 0.0
        self._roots: dict[Any, Path] = {}
        self._models: dict[int, _Model] = {}
        self._trained: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._region: Region | None = None
        self._reasons: Counter[str] = Counter()
        self._seconds: list[float] = []
        self._unproved = 0
        self._contest = Contest()
        self._num_refused = 0
        self._num_compiled_paths = 0
        self._num_paths = 0
        self.num_compiled = 0
        """Number of regions that ran compiled."""
        self.num_seen = 0
        """Number of regions."""
        self.end_reason = ""
        """Why recording has ended; "" if it has not."""
        DeferredTensor.call = self.call

    @property
    def is_pending(self) -> bool:
        """Return whether calls were deferred that are not made yet."""
        return self._region is not None and self._region.is_pending

    def wait(self) -> None:
        """Wait until what is being compiled is compiled."""
        paths = list(self._roots.values())
        while paths:
            path = paths.pop()
            paths += path.children.values()
            for function in (*path.endings.values(), *path.readings.values()):
                if function.future is not None:
                    wait_for(function.future)

    # models

    def call_model(
        self, call: Callable[..., Any], model: nn.Module, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a model, or defer the call."""
        if (
            self.end_reason
            or threading.get_ident() != self._thread
            or not torch.is_grad_enabled()
            or not self._is_trained(model)
        ):
            return call(model, *args, **kwargs)
        region = self._region
        if region is not None and not region.alive():
            self._abandon(region)
            region = None
        if region is None:
            region = self._begin()
            if region is None:
                return call(model, *args, **kwargs)
        elif torch_modes() != region.modes:
            self._pause(region)
        if region.ran is not None:
            self._revert(region)
        if region.is_pending:
            known = self._models.get(id(model))
            tensors = None if known is None else known.current_state()
            if known is not None and tensors is not None:
                path = self._child(region, known.reference, tensors, args, kwargs)
                if path is not None:
                    region.model_calls.append(partial(call, model))
                    region.watch(tensors.unchanged)
                    return region.defer(path)
            self._compute(region)
        return self._observe_model(region, call, model, args, kwargs)

    def _begin(self) -> Region | None:
        """Begin a region; return None if calls are not to be recorded now."""
        if self._after_seconds:
            now = time.perf_counter()
            self._trained_since = self._trained_since or now
            if now - self._trained_since < self._after_seconds:
                return None
            self._after_seconds = 0.0
        state = None if _is_distributed() else torch_state()
        if state is None or state[1]:
            return None
        root = self._roots.get(state)
        if root is None:
            root = self._roots[state] = Path()
        if root.is_ready and not self._contest.is_over and not self._contest.begin():
            return None
        region = self._region = Region(root, state, self._compute, self._lose)
        region.start = time.perf_counter()
        return region

    def _is_trained(self, model: nn.Module) -> bool:
        is_trained = self._trained.get(model)
        if is_trained is None:
            is_trained = any(parameter.requires_grad for parameter in model.parameters())
            self._trained[model] = is_trained
        return is_trained

    def _model(self, model: nn.Module) -> _Model:
        """Return what is known of a model."""
        known = self._models.get(id(model))
        if known is None:
            known = self._models[id(model)] = _Model(model)
            weakref.finalize(model, self._forget, id(model)).atexit = False
        return known

    def _forget(self, identity: int) -> None:
        """Let go of a model that is gone."""
        known = self._models.pop(identity, None)
        if known is not None:
            for root in list(self._roots.values()):
                root.forget(lambda key, _: key.function is not known.reference)

    def _lose(self, region: Region) -> None:
        """End a region of whose results the script has none, unless models change by its calls."""
        if region is self._region and threading.get_ident() == self._thread:
            models = [key.model for key in region.path.call_keys() if key.model is not None]
            if not region.is_pending or not any(model.buffers for model in models):
                region.is_pending = False
                self._abandon(region)

    def _observe_model(
        self,
        region: Region,
        call: Callable[..., Any],
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if region.reason:
            return call(model, *computed(args), **computed(kwargs))
        try:
            known = self._model(model)
            tensors = known.state()
        except CompileError as error:
            region.reason = str(error)
            return call(model, *computed(args), **computed(kwargs))
        region.watch(tensors.unchanged)
        if self._unproved:
            for buffer in tensors.buffers.values():
                region.buffers_before.setdefault(id(buffer), buffer.clone())
        return self._observe(region, known.reference, tensors, args, kwargs, partial(call, model))

    # functions of torch

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch that has a deferred tensor among its arguments."""
        region = self._region
        if region is None or threading.get_ident() != self._thread:
            return _call_computed(function, args, kwargs)
        has_modes = torch_modes() == region.modes
        if region.is_pending and has_modes:
            path = region.path.likely
            if path is not None and path.matches(region, function, None, args, kwargs):
                return region.defer(path)
        if function in NEVER_RECORDED:
            return _call_computed(function, args, kwargs)
        if function in LAYOUT_READERS and args and type(args[0]) is DeferredTensor:
            return describe_layout(function, args, kwargs)
        if function is BACKWARD and args[0].region is region:
            if not has_modes:
                self._pause(region)
            self._backward(region, args[0], args[1:], kwargs)
            return None
        if not _has_result(region, args) and not _has_result(region, kwargs):
            return _call_computed(function, args, kwargs)
        if not has_modes:
            self._pause(region)
            return _call_computed(function, args, kwargs)
        reads = function in VALUE_READERS and type(args[0]) is DeferredTensor
        if region.ran is not None:
            if reads or (function in NEED_NO_GRAPH and type(args[0]) is DeferredTensor):
                return function(value_of(args[0]), *args[1:], **kwargs)
            self._revert(region)
        if region.is_pending:
            path = self._child(region, function, None, args, kwargs)
            if path is not None:
                return region.defer(path)
            if reads and (self._read(region, args[0]) or self._run_for(region, args[0].position)):
                return function(value_of(args[0]), *args[1:], **kwargs)
            self._compute(region)
        if region.reason:
            return _call_computed(function, args, kwargs)
        if reads:
            region.note_read(args[0])
            return _call_computed(function, args, kwargs)
        return self._observe(region, function, None, args, kwargs, function)

    def _child(
        self,
        region: Region,
        function: Any,
        tensors: ModelTensors | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Path | None:
        """Return the path with this call, if it is ready."""
        likely = region.path.likely
        if likely is not None and likely.matches(region, function, tensors, args, kwargs):
            return likely
        size = len(region.batch)
        try:
            key = _key(region, function, tensors, args, kwargs)
        except UnrecordableError:
            key = None
        path = None if key is None else region.path.children.get(key)
        if path is None or not path.is_ready:
            del region.batch[size:]
            return None
        region.path.likely = path
        return path

    def _observe(
        self,
        region: Region,
        function: Any,
        tensors: ModelTensors | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any],
    ) -> Any:
        """Make a call, and add it to the region."""
        if region.path.num_calls == MAX_CALLS:
            region.reason = f"more than {MAX_CALLS} calls until backward"
        random_state = torch.get_rng_state()
        try:
            key = _key(region, function, tensors, args, kwargs)
        except UnrecordableError as error:
            region.reason = f"{name_of(function)}: {error}"
        versions = [tensor._version for tensor in region.batch]
        real_args, real_kwargs = computed(args), computed(kwargs)
        value = call(*real_args, **real_kwargs)
        if region.reason:
            return value
        if versions != [tensor._version for tensor in region.batch]:
            region.reason = f"{name_of(function)} changes a tensor of the script"
        elif not torch.equal(random_state, torch.get_rng_state()):
            region.random_states.append(random_state)
        if region.reason:
            return value
        self._count_path(region.path, key)
        path = region.path.follow(key)
        try:
            if not path.set_result(value, region.index_of):
                raise UnrecordableError("what it returns changes from step to step")
            if not holds_tensor(path.result):
                raise UnrecordableError("it returns no tensor")
        except UnrecordableError as error:
            region.reason = f"{name_of(function)}: {error}"
            return value
        return region.observe(path, new_tensors(value, path.result))

    def _count_path(self, path: Path, key: CallKey) -> None:
        """Count a path if it is a new one; remove those that are not compiled if there are many."""
        if key not in path.children:
            self._num_paths += 1
        if self._num_paths > MAX_PATHS:
            self._num_paths = 0
            for root in self._roots.values():
                root.forget(lambda _, path: path.is_ready)

    # the end of a region

    def _backward(
        self, region: Region, loss: DeferredTensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        is_plain = not args and not any(kwargs.values())
        self._region = None
        self.num_seen += 1
        ending = region.path.endings.get(loss.position)
        if region.ran is not None:
            if is_plain and region.ran is ending:
                self._assign(region, ending)
                return
            self._revert(region)
        if region.is_pending:
            if is_plain and ending is not None and self._run(region, loss.position, ending):
                self._assign(region, ending)
                return
            self._compute(region)
        if not is_plain and not region.reason:
            region.reason = "backward is called with arguments"
        self._backward_observed(region, loss, args, kwargs)

    def _backward_observed(
        self, region: Region, loss: DeferredTensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        real = real_of(loss)
        if not region.reason and (not real.requires_grad or real.numel() != 1):
            region.reason = "the loss is no tensor of one number that needs a gradient"
        if any(tensor._version != version for tensor, version in region.versions):
            region.reason = "parameters or data are changed between the model's call and backward"
        proof = None
        if not region.reason:
            unused = _with_unused_graphs(real, region.alive())
            proof = self._prepare(region, loss.position, unused)
        try:
            real.backward(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            reason, path = region.reason, region.path
            region.close()
        if reason:
            self._refuse(reason)
            return
        self._seconds.append(time.perf_counter() - region.start)
        if proof is not None:
            ending = path.endings[loss.position]
            difference = proof.difference(real)
            if difference:
                self._count_failed(ending, difference)
            else:
                self._unproved -= 1
                assert ending.future is not None
                ending.shared = proof.shared()
                ending.run = ending.future.result()
                path.be_ready()

    def _prepare(
        self, region: Region, loss: int, unused: list[DeferredTensor]
    ) -> GradientProof | None:
        """Count what was seen; compile it, or prove what was compiled.

        Args:
            region: The region, whose calls were made.
            loss: Index of the result whose `backward` is called.
            unused: Results of which `backward` leaves something of the graph.
        """
        path = region.path
        ending = path.endings.get(loss)
        if ending is None:
            ending = path.endings[loss] = Ending()
        ending.keep_unused(unused)
        if ending.is_graph_needed:
            region.reason = "a result is needed after backward"
            return None
        ending.num_seen += 1
        if ending.future is None:
            ending.returned |= region.returned()
            if ending.num_seen < NUM_SEEN:
                if ending.num_seen == 1:
                    self._refuse("", "calls differ from step to step")
                return None
            if min(self._seconds) > MAX_SECONDS:
                self.end("steps are long enough that Python is not what they wait for")
                return None
        for early_path, index in region.early_reads():
            early_path.reading(index).num_seen += 1
        try:
            with only_tracer() as is_only:
                if is_only:
                    self._compile(region, loss, ending)
            are_proved = self._prove_reads(region)
            if not are_proved or ending.run is not None or not _is_compiled(ending):
                return None
            if any(id(buffer) not in region.buffers_before for buffer in ending.buffers):
                return None
            return GradientProof(ending, region)
        except CompileError as error:
            self.end(str(error))
            return None

    def _compile(self, region: Region, loss: int, ending: Ending) -> None:
        """Compile what was seen often enough. Raises CompileError."""
        if ending.future is None:
            self._count_compiled("calls differ from step to step")
            compile_ending(region, loss, ending)
        for path, index in region.early_reads():
            reading = path.reading(index)
            if reading.future is None and reading.num_seen >= NUM_SEEN:
                self._count_compiled("results that are read differ from step to step")
                compile_reading(region, path, index, reading)

    def _prove_reads(self, region: Region) -> bool:
        """Prove what was compiled for results that are read before the last call.

        Return whether all of them are proved. Raises CompileError.
        """
        are_proved = True
        for path, index in region.early_reads():
            reading = path.reading(index)
            if (
                reading.run is None
                and _is_compiled(reading)
                and all(id(buffer) in region.buffers_before for buffer in reading.buffers)
            ):
                if is_read_value(reading, region, path, index):
                    self._unproved -= 1
                    assert reading.future is not None
                    reading.run = reading.future.result()
                else:
                    self._count_failed(reading, "a compiled result is another")
            are_proved = are_proved and reading.run is not None
        return are_proved

    def _count_compiled(self, reason: str) -> None:
        """Count a function that is to be compiled. Raises CompileError if there are too many."""
        if self._num_compiled_paths == MAX_COMPILED:
            raise CompileError(reason)
        self._num_compiled_paths += 1
        self._unproved += 1

    def _count_failed(self, function: RecordedFunction, difference: str) -> None:
        """Count a proof that has failed; end recording after some."""
        function.num_failed += 1
        if function.num_failed == MAX_FAILED:
            self.end(difference)

    def _read(self, region: Region, tensor: DeferredTensor) -> bool:
        """Give a result its numbers because it is read; return False if nothing is compiled."""
        index, path = tensor.position, region.path
        if region.served.get(index) is path:
            return True
        reading = path.readings.get(index)
        if reading is None or reading.run is None:
            return False
        _check_versions(region)
        try:
            with torch.no_grad():
                [value] = reading.run([*reading.tensors, *region.batch, *region.numbers])
        except (RuntimeError, IndexError):
            return False  # the script's calls will explain it
        set_numbers(tensor, value)
        region.served[index] = path
        return True

    def _run(self, region: Region, loss: int, ending: Ending) -> bool:
        """Run the compiled function of a region; return False if there is none for it."""
        if ending.run is None:
            return False
        alive = region.alive()
        known = ending.order
        if any(tensor.position != loss and tensor.position not in known for tensor in alive):
            self._refuse("results are kept that were not kept before")
            return False
        _check_versions(region)
        try:
            with torch.no_grad():
                results = ending.run([*ending.tensors, *region.batch, *region.numbers])
        except (RuntimeError, IndexError):
            return False  # the script's calls will explain it
        if ending.buffers:
            increment_version(ending.buffers)
        for tensor in alive:
            position = 0 if tensor.position == loss else 1 + known.index(tensor.position)
            fill(tensor, results[position])
        region.gradients = list(results[1 + len(known) :])
        region.is_pending = False
        self.num_compiled += 1
        self._num_refused = 0
        return True

    def _assign(self, region: Region, ending: Ending | None) -> None:
        """Give the weights their gradients, and end the region."""
        assert ending is not None
        for position, weight in enumerate(ending.trained):
            gradient = region.gradients[position]
            if weight.grad is None:
                weight.grad = gradient.clone() if position in ending.shared else gradient
            else:
                with torch.no_grad():
                    weight.grad += gradient
        if ending.unused:
            ending.keep_unused(each for each in region.kept() if each.position in ending.unused)
        region.close()

    def _run_for(self, region: Region, index: int) -> bool:
        """Run a region because a result is read before `backward`."""
        for loss, ending in region.path.endings.items():
            if ending.run is not None and (index == loss or index in ending.order):
                before = {id(buffer): buffer.clone() for buffer in ending.buffers}
                if not self._run(region, loss, ending):
                    return False
                region.buffers_before, region.ran = before, ending
                for tensor in region.kept():
                    tensor.region = region
                return True
        return False

    def _revert(self, region: Region) -> None:
        """Undo what the compiled function did; make the calls one by one."""
        assert region.ran is not None
        with torch.no_grad():
            for buffer in region.ran.buffers:
                buffer.copy_(region.buffers_before[id(buffer)])
        region.ran, region.is_pending, region.gradients = None, True, []
        self.num_compiled -= 1
        self._compute(region)

    def _pause(self, region: Region) -> None:
        """Make the deferred calls: those that follow are made in other modes of torch."""
        region.reason = "modes of torch change between the model's call and backward"
        self._run_eagerly(region)

    def _run_eagerly(self, region: Region) -> None:
        """Make the calls one by one that were deferred, or that the compiled function made."""
        if region.ran is not None:
            self._revert(region)
        elif region.is_pending:
            self._compute(region)

    def _compute(self, region: Region) -> None:
        """Make the deferred calls."""
        region.is_pending = False
        random_state = torch.get_rng_state() if region.random_states else None
        with in_modes(region.modes):
            results = self._make_calls(region)
        if random_state is not None:
            torch.set_rng_state(random_state)
        for tensor in region.alive():
            become(tensor, results[tensor.position])

    def _make_calls(self, region: Region) -> list[Tensor]:
        """Call models and functions as the script has; return their results."""
        results: list[Tensor] = []
        model_calls, random_states = iter(region.model_calls), iter(region.random_states)
        for path in region.path.calls():
            key = path.key
            assert key is not None
            args = restore(key.args, region.batch, results, region.weights)
            kwargs = restore(key.kwargs, region.batch, results, region.weights)
            if path.noise:
                torch.set_rng_state(next(random_states))
            if self._unproved and key.model is not None:
                for buffer in key.model.buffers.values():
                    region.buffers_before.setdefault(id(buffer), buffer.clone())
            with torch.set_grad_enabled(key.is_grad_enabled):
                if key.model is None:
                    value = key.function(*args, **kwargs)
                else:
                    with within_call():
                        value = next(model_calls)(*args, **kwargs)
            results += new_tensors(value, path.result)
        return results

    def _abandon(self, region: Region) -> None:
        """End a region whose results the script has let go."""
        if region.is_pending and region.path.key is not None:
            self._compute(region)  # models may have changed their buffers
        if region.reason:
            self._refuse(region.reason)
        region.close()
        self._region = None

    def before_step(self, *_: object) -> None:
        """End the region before an optimizer changes its weights."""
        if not self._contest.is_over and self._contest.end():
            self.end("steps are no faster compiled")
        region = self._region
        if region is not None:
            self._run_eagerly(region)
            self._refuse(region.reason, "backward is not called on the loss")
            region.close()
            self._region = None

    def settle(self) -> None:
        """Make the deferred calls, if this thread has made them."""
        region = self._region
        if region is not None and region.is_pending and threading.get_ident() == self._thread:
            self._compute(region)

    def leave(self) -> None:
        """End recording for a script that compiles: it would trace recorded tensors."""
        self.before_step()
        self.end("the script compiles by itself")

    def _refuse(self, reason: str, end_reason: str = "") -> None:
        if reason:
            self._reasons[reason] += 1
        self._num_refused += 1
        if self._num_refused >= MAX_REFUSED:
            most = self._reasons.most_common(1)
            self.end(most[0][0] if most else end_reason)

    def end(self, reason: str) -> None:
        """End recording: all regions are as the script writes them."""
        self.end_reason = self.end_reason or reason
        self._roots, self._models = {}, {}


class _Model:
    """A model that has been called, and its states."""

    def __init__(self, model: nn.Module) -> None:
        self.reference = weakref.ref(model)
        self._states: list[ModelTensors] = []

    def current_state(self) -> ModelTensors | None:
        """Return the state of now among those seen; None if it is a new one."""
        return next((state for state in self._states if state.is_current()), None)

    def state(self) -> ModelTensors:
        """Return the state of now. Raises CompileError."""
        state, model = self.current_state(), self.reference()
        if state is None and model is not None:
            _check(model)
            if len(self._states) == MAX_STATES:
                change = self._states[-1].values.difference() or "a value of the model"
                raise CompileError(f"{change} changes from step to step")
            state = ModelTensors(model)
            effect = next(filter(None, map(effect_of, functions_of(model.modules()))), "")
            if effect:
                raise CompileError(effect)
            self._states.append(state)
        assert state is not None
        return state


def _is_compiled(function: RecordedFunction) -> bool:
    return function.future is not None and function.future.done()


def _check_versions(region: Region) -> None:
    """Raise an error if the script has changed what a deferred call was to read."""
    if any(tensor._version != version for tensor, version in region.versions):
        raise RuntimeError(CHANGED)


def _key(
    region: Region,
    function: Any,
    tensors: ModelTensors | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> CallKey:
    """Return the description of a call. Raises UnrecordableError."""
    return CallKey(
        function, tensors, torch.is_grad_enabled(), describe(args, region), describe(kwargs, region)
    )


def _has_result(region: Region, value: Any) -> bool:
    if type(value) is DeferredTensor:
        return value.region is region
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return False
    return any(_has_result(region, member) for member in value)


def _call_computed(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if function in NEED_NO_GRAPH and len(args) == 1 and args[0].region is None:
        eager = args[0].eager
        return function(value_of(args[0]) if eager is None else eager, **kwargs)
    return function(*computed(args), **computed(kwargs))


def _with_unused_graphs(loss: Tensor, alive: list[DeferredTensor]) -> list[DeferredTensor]:
    """Return the tensors of whose graphs `backward` leaves something."""
    nodes = {id(each): each.eager.grad_fn for each in alive if each.eager is not None}
    unused = {node for node in nodes.values() if node is not None}
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting and unused:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            unused.discard(node)
            waiting += [following for following, _ in node.next_functions]
    return [each for each in alive if nodes.get(id(each)) in unused]


def _check(model: nn.Module) -> None:
    """Raise CompileError for a model that is not called as its forward is written."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None:
            raise CompileError("the model is compiled already")
        name = type(module).__module__
        if name.startswith(UNSUPPORTED_MODULES):
            raise CompileError(f"the model has a {type(module).__name__}")


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()

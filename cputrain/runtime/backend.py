"""Run a model's forward through another library's kernels, in training or in evaluation.

Training switches to the backend after the first optimizer step, or at the first forward if the
backend modifies the model in place.

Evaluation switches once the backend's output has matched torch's. Only calls whose arguments have
the same signature (shapes, dtypes, strides) use it: any other signature would compile again. Unless
the user named the backend, a model first runs on torch for as long as compiling may take; then
calls alternate between torch and the backend until it is known which is faster.
"""

from __future__ import annotations

import sys
import time
import weakref
from functools import wraps

from cputrain.runtime.double_backward import DoubleBackward
from cputrain.runtime.patching import Patch, skip_frames
from cputrain.runtime.root_forward import is_watched, root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Call = Callable[..., Any]

MIN_TORCH_S = 30.0
"""Seconds of evaluation on torch before a backend is tried."""

NUM_TIMED = 3
"""Calls that are timed of torch and of the backend."""

MIN_SPEEDUP = 1.03
"""The least speed-up over torch at which the backend is kept."""

MAX_DIFFERENCE = 1e-3
"""Largest relative difference between the outputs of the backend and of torch."""


class BackendModels:
    """The models that were called, and the backend that runs each of them."""

    def __init__(
        self,
        torch: ModuleType,
        *,
        training: str | None,
        evaluation: str | None,
        is_named: bool,
        unsafe: bool,
    ) -> None:
        from cputrain.backends.registry import load_backend

        self._torch = torch
        self._training = None if training is None else load_backend(training)
        self._evaluation = None if evaluation is None else load_backend(evaluation)
        self._is_named = is_named
        self._unsafe = unsafe
        self._num_steps = 0
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._num_steps_at_first_call: weakref.WeakKeyDictionary[Any, int] = (
            weakref.WeakKeyDictionary()
        )
        self._training_runs: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
        self._evaluations: weakref.WeakKeyDictionary[Any, Evaluation] = weakref.WeakKeyDictionary()
        self._notes: dict[str, int] = {}
        self._double_backward = DoubleBackward(torch)
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._intercept)
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._after_step)
        skip_frames(BackendModels._after_step.__code__)
        optimizer_class, original = torch.optim.Optimizer, torch.optim.Optimizer.__init__
        optimizers = self._optimizers

        @wraps(original)
        def begun(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            optimizers.add(optimizer)

        self._patch = Patch(optimizer_class, "__init__", begun)

    def _after_step(self, *_: object) -> None:
        if not self._torch.compiler.is_compiling():
            self._num_steps += 1

    def _intercept(self, call: Call, model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if is_watched(self._torch) or next(model.parameters(), None) is None:
            return call(model, *args, **kwargs)
        if not self._torch.is_grad_enabled():
            if self._evaluation is None or model.training:
                return call(model, *args, **kwargs)
            evaluation = self._evaluations.get(model)
            if evaluation is None:
                evaluation = self._evaluations[model] = Evaluation(self)
            return evaluation(call, model, args, kwargs)
        if self._training is None or self._double_backward.is_used or not model.training:
            return call(model, *args, **kwargs)
        run = self._training_runs.get(model)
        if run is not None:
            return run(model, *args, **kwargs)
        if not self._should_switch(model):
            return call(model, *args, **kwargs)
        run = self._training_runs[model] = self._start_training(model) or call
        return run(model, *args, **kwargs)

    def _should_switch(self, model: Any) -> bool:
        """Return whether training of the model switches to the backend with this call."""
        assert self._training is not None
        if self._training.in_place:
            first, self._num_steps_at_first_call[model] = (
                model not in self._num_steps_at_first_call,
                self._num_steps,
            )
            return first
        return self._num_steps > self._num_steps_at_first_call.setdefault(model, self._num_steps)

    def _start_training(self, model: Any) -> Call | None:
        """Return the backend's forward for training; None if torch must keep the model."""
        backend = self._training
        assert backend is not None
        param_ids = {id(parameter) for parameter in model.parameters()}
        optimizers = [
            optimizer
            for optimizer in self._optimizers
            if any(
                id(param) in param_ids
                for group in optimizer.param_groups
                for param in group["params"]
            )
        ]
        if len(optimizers) != 1:
            self.add_note(f"a model is trained by torch: it has {len(optimizers)} optimizers")
            return None
        try:
            run = self.activate(backend, model, optimizers[0], training=True)
        except Exception as error:  # the backend may raise anything
            self.add_note(f"a model is trained by torch: {one_line(error)}")
            return None
        self.add_note(f"a model trained by {backend.name}")
        return run

    def activate(self, backend: Any, model: Any, optimizer: Any, *, training: bool) -> Call:
        """Return the backend's forward, made while torch's own Module.__call__ is in place."""
        with self._root_forward.original_call():
            run: Call = backend.activate(model, optimizer, training=training)
        return run

    def run_first(self, run: Call, model: Any, args: Any, kwargs: Any) -> Any:
        """Run the backend's first forward, which may compile, with torch's own Module.__call__."""
        with self._root_forward.original_call():
            return run(model, *args, **kwargs)

    def add_note(self, note: str) -> None:
        """Add a sentence to the report; count repeated ones."""
        self._notes[note] = self._notes.get(note, 0) + 1

    def describe(self) -> str:
        return ", ".join(
            note if count == 1 else f"{note} ({count} times)"
            for note, count in sorted(self._notes.items())
        )

    def undo(self) -> None:
        self._root_forward.remove(self._intercept)
        self._double_backward.undo()
        self._patch.undo()
        self._hook.remove()


class Evaluation:
    """Evaluation of one model with one signature: on torch, alternating, then on the faster."""

    def __init__(self, models: BackendModels) -> None:
        self._models = models
        self._torch_s: dict[Any, float] = {}
        self._signature: Any = None
        self._run: Call | None = None
        self._elapsed_s: dict[bool, list[float]] = {False: [], True: []}
        self._is_over = False

    def __call__(self, call: Call, model: Any, args: Any, kwargs: Any) -> Any:
        """Return the model's output, from torch or from the backend."""
        if self._is_over:
            return call(model, *args, **kwargs)
        signature = signature_of(args, kwargs)
        if self._run is not None:
            if signature != self._signature:
                return call(model, *args, **kwargs)
            return self._run_backend(self._run, call, model, args, kwargs)
        models = self._models
        if not models._is_named and self._torch_s.get(signature, 0.0) < MIN_TORCH_S:
            begin = time.perf_counter()
            output = call(model, *args, **kwargs)
            if signature is not None:
                self._torch_s[signature] = (
                    self._torch_s.get(signature, 0.0) + time.perf_counter() - begin
                )
            return output
        if signature is None:
            return call(model, *args, **kwargs)
        self._signature = signature
        return self._compare_once(call, model, args, kwargs)

    def _run_backend(self, run: Call, call: Call, model: Any, args: Any, kwargs: Any) -> Any:
        """Run the backend, or alternate with torch until enough calls are timed."""
        is_backend = self._models._is_named or len(self._elapsed_s[False]) > len(
            self._elapsed_s[True]
        )
        is_decided = self._models._is_named or len(self._elapsed_s[True]) == NUM_TIMED
        begin = time.perf_counter()
        try:
            output = (run if is_backend or is_decided else call)(model, *args, **kwargs)
        except Exception as error:
            if not (is_backend or is_decided):
                raise
            self._fall_back(f"{one_line(error)}")
            return call(model, *args, **kwargs)
        if not is_decided:
            self._elapsed_s[is_backend].append(time.perf_counter() - begin)
            if len(self._elapsed_s[True]) == NUM_TIMED:
                self._decide()
        return output

    def _decide(self) -> None:
        torch_s, backend_output = (
            sorted(self._elapsed_s[is_backend])[NUM_TIMED // 2] for is_backend in (False, True)
        )
        if torch_s < MIN_SPEEDUP * backend_output:
            self._fall_back(
                f"that was {torch_s / backend_output:.2f} times as fast, which is too little"
            )
        else:
            self._note_backend(f", {torch_s / backend_output:.2f} times as fast")

    def _compare_once(self, call: Call, model: Any, args: Any, kwargs: Any) -> Any:
        """Run torch and then the backend on the same input, and compare outputs; return torch's."""
        torch, models = self._models._torch, self._models
        before = mutable_state(model, args, kwargs)
        state = torch.get_rng_state()
        output = call(model, *args, **kwargs)
        if before is None or before != mutable_state(model, args, kwargs):
            self._fall_back("a second call would be seen: it has hooks, or changes something")
            return output
        after = torch.get_rng_state()
        try:
            torch.set_rng_state(state)
            self._run = models.activate(models._evaluation, model, None, training=False)
            backend_output = models.run_first(self._run, model, args, kwargs)
            difference = relative_difference(output, backend_output)
        except Exception as error:
            self._fall_back(one_line(error))
            return output
        finally:
            torch.set_rng_state(after)
        if difference > MAX_DIFFERENCE and not models._unsafe:
            self._fall_back(f"its output was {difference:.1e} off")
        elif models._is_named:
            self._note_backend(f", {difference:.0e} from torch's")
        return output

    def _note_backend(self, detail: str) -> None:
        backend = self._models._evaluation
        assert backend is not None
        self._models.add_note(f"a model evaluated by {backend.name}{detail}")

    def _fall_back(self, reason: str) -> None:
        backend = self._models._evaluation
        assert backend is not None
        self._is_over, self._run = True, None
        self._models.add_note(f"a model evaluated by torch, and not by {backend.name}: {reason}")


def mutable_state(model: Any, args: Any, kwargs: Any) -> Any:
    """Return the state that a forward could change, to compare; None if the model has hooks."""
    import random

    from torch.utils._pytree import tree_leaves

    state: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        state.append(str(sys.modules["numpy"].random.get_state()))
    for module in model.modules():
        attributes = module.__dict__
        if any(attributes.get(name) for name in ("_forward_hooks", "_forward_pre_hooks")):
            return None
        for value in attributes.values():
            state.append(_Identity(value))
            if isinstance(value, (list, dict, set)):
                state.append(len(value))
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves((args, kwargs))]
    state += [
        tensor._version for tensor in tensors if is_plain(tensor) and not tensor.is_inference()
    ]
    return [*state, len(tensors)]


class _Identity:
    """A reference compared by identity; it keeps the object alive, so its id is not reused."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def signature_of(args: Any, kwargs: Any) -> Any:
    """Return what compiled code specializes on: shapes, dtypes, strides; None if unknown."""
    from torch.utils._pytree import tree_flatten

    leaves, spec = tree_flatten((args, kwargs))
    parts: list[Any] = [spec]
    for leaf in leaves:
        if is_plain(leaf):
            parts.append((tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()))
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            parts.append(leaf)
        else:
            return None
    return tuple(map(str, parts))


def is_plain(leaf: Any) -> bool:
    """Return whether a value is a strided tensor."""
    return str(getattr(leaf, "layout", "")) == "torch.strided"


def relative_difference(expected: Any, actual: Any) -> float:
    """Return the largest relative difference of two outputs; inf if their structures differ."""
    from torch.utils._pytree import tree_flatten

    (left, spec), (right, right_spec) = tree_flatten(expected), tree_flatten(actual)
    if spec != right_spec:
        return float("inf")
    return max((_leaf_difference(a, b) for a, b in zip(left, right, strict=True)), default=0.0)


def _leaf_difference(x: Any, y: Any) -> float:
    if not is_plain(x) or not is_plain(y):
        return 0.0 if x is y or (type(x) is type(y) and x == y) else float("inf")
    if x.shape != y.shape or x.dtype != y.dtype:
        return float("inf")
    a, b = (tensor.detach().cdouble() if tensor.is_complex() else tensor.detach().double()
            for tensor in (x, y))  # fmt: skip
    if not bool((a.isfinite() == b.isfinite()).all()):
        return float("inf")
    norm = float(a.nan_to_num(0.0, 0.0, 0.0).norm())
    difference = float((a - b).nan_to_num(0.0, 0.0, 0.0).norm())
    return difference / norm if norm else difference


def one_line(error: BaseException) -> str:
    """Return the type and message of an error on one line, shortened to 200 characters."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:200]}"


class MissingBackend:
    """Report of a backend that is not installed in this environment."""

    def __init__(self, name: str) -> None:
        self._name = name

    def describe(self) -> str:
        return f"models as torch runs them: there is no backend {self._name} here"

    def undo(self) -> None:
        """Do nothing: nothing was changed."""

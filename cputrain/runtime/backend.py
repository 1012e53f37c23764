"""Runs models by another library's kernels: what is trained, or what is evaluated.

A model is trained by them once the script has been through a whole step, or from its first call on
if they change the model itself. It is evaluated by them
once its own outputs have agreed, where its arguments have the form that they had then: for another
one, what compiles would compile again. Unless the user has asked for the backend, that is tried
only after a model was evaluated for as long as compiling may take, and then both take turns until
it is known which is faster.
"""

from __future__ import annotations

import sys
import time
import weakref
from functools import wraps

from cputrain.runtime.double_backward import DoubleBackward
from cputrain.runtime.patching import Patch, pass_by
from cputrain.runtime.root_forward import is_watched, outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Call = Callable[..., Any]

POLICY = "backend"

PATIENCE = 30.0
"""Seconds that a model is evaluated by torch first."""

TURNS = 3
"""Calls of each that are compared."""

GAIN = 1.03
"""How many times as fast it must be then."""

LIMIT = 1e-3
"""How far its outputs may be from torch's, relatively: as in its proof."""


class Backed:
    """The models that were called, and who runs them."""

    def __init__(
        self,
        torch: ModuleType,
        *,
        training: str | None,
        evaluation: str | None,
        asked: bool,
        unsafe: bool,
    ) -> None:
        from cputrain.backends.registry import backend_called

        self._torch = torch
        self._training = None if training is None else backend_called(training)
        self._evaluation = None if evaluation is None else backend_called(evaluation)
        self._asked = asked
        self._unsafe = unsafe
        self._steps = 0
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._trained: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()
        self._evaluated: weakref.WeakKeyDictionary[Any, Evaluation] = weakref.WeakKeyDictionary()
        self._says: dict[str, int] = {}
        self._derivatives = DoubleBackward(torch)
        self._outermost = outermost(torch)
        self._outermost.add(self._around)
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._stepped)
        pass_by(Backed._stepped.__code__)
        kind, own = torch.optim.Optimizer, torch.optim.Optimizer.__init__
        optimizers = self._optimizers

        @wraps(own)
        def begun(optimizer: Any, *args: Any, **options: Any) -> None:
            own(optimizer, *args, **options)
            optimizers.add(optimizer)

        self._exchanged = Patch(kind, "__init__", begun)

    def _stepped(self, *_: object) -> None:
        if not self._torch.compiler.is_compiling():
            self._steps += 1

    def _around(self, call: Call, model: Any, /, *args: Any, **options: Any) -> Any:
        if is_watched(self._torch) or next(model.parameters(), None) is None:
            return call(model, *args, **options)
        if not self._torch.is_grad_enabled():
            if self._evaluation is None or model.training:
                return call(model, *args, **options)
            evaluation = self._evaluated.get(model)
            if evaluation is None:
                evaluation = self._evaluated[model] = Evaluation(self)
            return evaluation(call, model, args, options)
        if self._training is None or self._derivatives.twice or not model.training:
            return call(model, *args, **options)
        run = self._trained.get(model)
        if run is not None:
            return run(model, *args, **options)
        if not self._is_time(model):
            return call(model, *args, **options)
        run = self._trained[model] = self._begun(model) or call
        return run(model, *args, **options)

    def _is_time(self, model: Any) -> bool:
        """Whether this call is the one from which on it is trained by them."""
        assert self._training is not None
        if self._training.in_place:
            first, self._since[model] = model not in self._since, self._steps
            return first
        return self._steps > self._since.setdefault(model, self._steps)

    def _begun(self, model: Any) -> Call | None:
        """What trains it from now on; None where that must be torch."""
        backend = self._training
        assert backend is not None
        mine = {id(parameter) for parameter in model.parameters()}
        updating = [
            one
            for one in self._optimizers
            if any(id(each) in mine for group in one.param_groups for each in group["params"])
        ]
        if len(updating) != 1:
            self.tell(f"a model is trained by torch: it has {len(updating)} optimizers")
            return None
        try:
            run = self.activate(backend, model, updating[0], training=True)
        except Exception as error:  # whatever it is, it is a fault of theirs
            self.tell(f"a model is trained by torch: {in_a_line(error)}")
            return None
        self.tell(f"a model trained by {backend.name}")
        return run

    def activate(self, backend: Any, model: Any, optimizer: Any, *, training: bool) -> Call:
        """What runs it: by torch's own call, where a backend keeps that or compiles it."""
        with self._outermost.away():
            run: Call = backend.activate(model, optimizer, training=training)
        return run

    def without_us(self, run: Call, model: Any, args: Any, options: Any) -> Any:
        """The first call, in which it may be compiled."""
        with self._outermost.away():
            return run(model, *args, **options)

    def tell(self, what: str) -> None:
        """Say so at the end."""
        self._says[what] = self._says.get(what, 0) + 1

    def describe(self) -> str:
        return ", ".join(
            what if count == 1 else f"{what} ({count} times)"
            for what, count in sorted(self._says.items())
        )

    def undo(self) -> None:
        self._outermost.remove(self._around)
        self._derivatives.undo()
        self._exchanged.undo()
        self._hook.remove()


class Evaluation:
    """One model's, for arguments of one form: by torch, in turns, and then by who is faster."""

    def __init__(self, backed: Backed) -> None:
        self._backed = backed
        self._spent: dict[Any, float] = {}
        self._form: Any = None
        self._run: Call | None = None
        self._took: dict[bool, list[float]] = {False: [], True: []}
        self._over = False

    def __call__(self, call: Call, model: Any, args: Any, options: Any) -> Any:
        """What the model gives."""
        if self._over:
            return call(model, *args, **options)
        form = form_of(args, options)
        if self._run is not None:
            if form != self._form:
                return call(model, *args, **options)
            return self._with(self._run, call, model, args, options)
        backed = self._backed
        if not backed._asked and self._spent.get(form, 0.0) < PATIENCE:
            begin = time.perf_counter()
            made = call(model, *args, **options)
            if form is not None:
                self._spent[form] = self._spent.get(form, 0.0) + time.perf_counter() - begin
            return made
        if form is None:
            return call(model, *args, **options)
        self._form = form
        return self._first(call, model, args, options)

    def _with(self, run: Call, call: Call, model: Any, args: Any, options: Any) -> Any:
        """By it, or in turns."""
        ours = self._backed._asked or len(self._took[False]) > len(self._took[True])
        decided = self._backed._asked or len(self._took[True]) == TURNS
        begin = time.perf_counter()
        try:
            made = (run if ours or decided else call)(model, *args, **options)
        except Exception as error:
            if not (ours or decided):
                raise
            self._leave(f"{in_a_line(error)}")
            return call(model, *args, **options)
        if not decided:
            self._took[ours].append(time.perf_counter() - begin)
            if len(self._took[True]) == TURNS:
                self._decide()
        return made

    def _decide(self) -> None:
        torchs, theirs = (sorted(self._took[ours])[TURNS // 2] for ours in (False, True))
        if torchs < GAIN * theirs:
            self._leave(f"that was {torchs / theirs:.2f} times as fast, which is too little")
        else:
            self._told(f", {torchs / theirs:.2f} times as fast")

    def _first(self, call: Call, model: Any, args: Any, options: Any) -> Any:
        """Torch's output, and theirs beside it."""
        torch, backed = self._backed._torch, self._backed
        before = seen(model, args, options)
        state = torch.get_rng_state()
        made = call(model, *args, **options)
        if before is None or before != seen(model, args, options):
            self._leave("a second call would be seen: it has hooks, or changes something")
            return made
        after = torch.get_rng_state()
        try:
            torch.set_rng_state(state)
            self._run = backed.activate(backed._evaluation, model, None, training=False)
            theirs = backed.without_us(self._run, model, args, options)
            far = how_far(made, theirs)
        except Exception as error:
            self._leave(in_a_line(error))
            return made
        finally:
            torch.set_rng_state(after)
        if far > LIMIT and not backed._unsafe:
            self._leave(f"its output was {far:.1e} off")
        elif backed._asked:
            self._told(f", {far:.0e} from torch's")
        return made

    def _told(self, how: str) -> None:
        backend = self._backed._evaluation
        assert backend is not None
        self._backed.tell(f"a model evaluated by {backend.name}{how}")

    def _leave(self, why: str) -> None:
        backend = self._backed._evaluation
        assert backend is not None
        self._over, self._run = True, None
        self._backed.tell(f"a model evaluated by torch, and not by {backend.name}: {why}")


def seen(model: Any, args: Any, options: Any) -> Any:
    """What a call might change: another one is made only where it did not. None with hooks."""
    import random

    from torch.utils._pytree import tree_leaves

    found: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        found.append(str(sys.modules["numpy"].random.get_state()))
    for module in model.modules():
        held = module.__dict__
        if any(held.get(name) for name in ("_forward_hooks", "_forward_pre_hooks")):
            return None
        for value in held.values():
            found.append(_Itself(value))
            if isinstance(value, (list, dict, set)):
                found.append(len(value))
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves((args, options))]
    found += [one._version for one in tensors if is_plain(one) and not one.is_inference()]
    return [*found, len(tensors)]


class _Itself:
    """Equal where it is of the same object; which stays alive, so that no other takes its place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def form_of(args: Any, options: Any) -> Any:
    """What compiled code is made for; None where that is not known."""
    from torch.utils._pytree import tree_flatten

    leaves, form = tree_flatten((args, options))
    found: list[Any] = [form]
    for leaf in leaves:
        if is_plain(leaf):
            found.append((tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()))
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            found.append(leaf)
        else:
            return None
    return tuple(map(str, found))


def is_plain(leaf: Any) -> bool:
    """Whether it is a tensor whose elements lie in memory as it says."""
    return str(getattr(leaf, "layout", "")) == "torch.strided"


def how_far(one: Any, other: Any) -> float:
    """The largest difference of two outputs, relatively; infinite where they are not alike."""
    from torch.utils._pytree import tree_flatten

    (left, form), (right, same) = tree_flatten(one), tree_flatten(other)
    if form != same:
        return float("inf")
    return max((_far(a, b) for a, b in zip(left, right, strict=True)), default=0.0)


def _far(one: Any, other: Any) -> float:
    if not is_plain(one) or not is_plain(other):
        return 0.0 if one is other or (type(one) is type(other) and one == other) else float("inf")
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    a, b = (each.detach().cdouble() if each.is_complex() else each.detach().double()
            for each in (one, other))  # fmt: skip
    if not bool((a.isfinite() == b.isfinite()).all()):
        return float("inf")
    norm = float(a.nan_to_num(0.0, 0.0, 0.0).norm())
    far = float((a - b).nan_to_num(0.0, 0.0, 0.0).norm())
    return far / norm if norm else far


def in_a_line(error: BaseException) -> str:
    """What went wrong, in as much as fits."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:200]}"


class Missing:
    """What is said where a plan was made in another environment."""

    def __init__(self, name: str) -> None:
        self._name = name

    def describe(self) -> str:
        return f"models as torch runs them: there is no backend {self._name} here"

    def undo(self) -> None:
        """Nothing was done."""


def apply(torch: ModuleType, value: Any) -> Backed | Missing | None:
    """Wait for models to be called."""
    if value is None:
        return None
    try:
        return Backed(torch, **value)
    except KeyError as error:
        return Missing(str(error).strip("'"))

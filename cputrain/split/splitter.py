"""Divides the calls of one model among replicas, and leaves it alone where that would not do."""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial

import torch

from cputrain.split import batch_norm, random_functions
from cputrain.split.batch import DIMS, Arguments, ranges
from cputrain.split.call import Call, Whole
from cputrain.split.check import FEWEST, find_way
from cputrain.split.compare import CannotSplitError, Way
from cputrain.split.crew import Alone, crew_of, leave, within
from cputrain.split.draws import Draws
from cputrain.split.views import View, shape_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import nn

    from cputrain.machine import Cpus
    from cputrain.split.call import Calls
    from cputrain.split.choose import Choice

    Places = list[tuple[Cpus, ...]]


SHAPES = 3
"""Views are kept for so many: a model in training, and in evaluation."""

TRIES = 3
"""Calls that are waited for because one dimension is too short to tell."""

_jit: Any = torch.jit


class Splitter:
    """What is known of one model."""

    def __init__(
        self,
        model: nn.Module,
        places: dict[int, Places],
        choice: Choice,
        *,
        shares: Sequence[float] | None = None,
        tell: Callable[[str], None] = lambda _: None,
        falls_back: bool = False,
    ) -> None:
        """One that `falls_back` runs the whole batch where a part fails in its forward."""
        self._known = weakref.ref(model)
        self._places = places
        self._choice = choice
        self._shares = shares
        self._tell = tell
        self._falls_back = falls_back
        self._owner = os.getpid()
        self._ways: dict[Any, tuple[int, Way] | None] = {}
        self._views: dict[Any, list[View]] = {}
        self._tries: dict[Any, int] = {}
        self.refused = ""
        """Why a kind of call is left alone; empty where none is."""
        self.divided = 0
        """Calls that were."""

    def __call__(self, call: Calls, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The model's call, divided if that gives the same."""
        trains = torch.is_grad_enabled() and self._model.training
        may = self._places and (trains or not self.measures) and self._may()
        shape = shape_of(self._model) if may else None
        found = None if shape is None else self._way(call, args, options)
        if found is None:
            return call(self._model, *args, **options)
        arguments, way = found
        count = min(self._choice.count(arguments.size, trains=trains), arguments.size)
        if count == 1 and not self.measures:
            return call(self._model, *args, **options)
        if not self._falls_back:
            return self._divided(call, arguments, way, count, shape)
        put_back = self._kept(way)
        try:
            return self._divided(call, arguments, way, count, shape)
        except Exception as error:  # the model's own, which the whole raises again; or ours
            fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
        put_back()
        whole = call(self._model, *args, **options)
        self.use_only(0)
        self._refuse(fault)
        return whole

    def _kept(self, way: Way) -> Callable[[], None]:
        """What puts random numbers and buffers back as they are now."""
        state = torch.get_rng_state()
        kept = [
            (buffer, buffer.clone())
            for name, buffer in self._model.named_buffers()
            if name in way.changing
        ]

        def put_back() -> None:
            torch.set_rng_state(state)
            for buffer, value in kept:
                buffer.copy_(value)

        return put_back

    def _refuse(self, reason: str) -> None:
        self.refused = reason
        self._tell(reason)

    @property
    def _model(self) -> nn.Module:
        model = self._known()
        assert model is not None, "it is called by its model only"
        return model

    @property
    def measures(self) -> bool:
        """Whether the number of replicas is not known yet."""
        return getattr(self._choice, "chosen", 1) is None

    def use_only(self, count: int) -> None:
        """The other numbers are not needed any more; 0 leaves none."""
        for other in [one for one in self._places if one != count]:
            leave(self, self._places.pop(other))

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
            or torch._C._len_torch_function_stack()
            or torch._C._functorch.peek_interpreter_stack() is not None
        )

    def _way(
        self, call: Calls, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Arguments, Way] | None:
        first = Arguments(args, options, DIMS[0])
        kind = (
            first.kind, self._model.training, torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
        )  # fmt: skip
        if kind not in self._ways:
            if first.size < FEWEST:  # too few to tell: perhaps there are more next time
                return None
            self._find(kind, call, args, options)
        known = self._ways.get(kind)
        if known is None:
            return None
        dim, way = known
        arguments = first if dim == first.dim else Arguments(args, options, dim)
        return (arguments, way) if arguments.size > 1 else None

    def _find(self, kind: Any, call: Calls, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Raises nothing: what cannot be divided is called as it is."""
        exchange()
        reasons = []
        crew = crew_of(next(iter(self._places.values())), self)
        for dim in DIMS:
            arguments = Arguments(args, options, dim)
            if 0 < arguments.size < FEWEST and self._tries.get(kind, 0) < TRIES:
                self._tries[kind] = self._tries.get(kind, 0) + 1
                return  # it may be this one, and shows with more samples
            if arguments.size < FEWEST:
                continue
            try:
                self._ways[kind] = dim, find_way(self._model, call, arguments, crew)
                return
            except CannotSplitError as refusal:
                reasons.append(str(refusal))
            except Exception as error:  # (a part alone does not fit it: told below)
                reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
        self._ways[kind] = None
        self._refuse(reasons[0])

    def _divided(self, call: Calls, arguments: Arguments, way: Way, count: int, shape: Any) -> Any:
        crew = Alone() if count == 1 else self._crew(count)
        views = self._current((shape, way.changing), way, count)
        parts = ranges(arguments.size, self._shares or [1.0] * count)
        for view in views[: len(parts)]:
            view.refresh()
        one = Call(
            crew, views, call, arguments, parts, Draws(len(parts), way.draws),
            partial(self._choice.took, count, arguments.size),
        )  # fmt: skip
        one.forward()
        self.divided += count > 1
        wanted = [arguments.leaves[number] for number in arguments.differentiable]
        leaves = one.outputs[0]
        if one.has_graph:
            apply: Any = Whole.apply
            found = iter(apply(one, way.together, *wanted, *self._model.parameters()))
            whole = [next(found) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        else:
            whole = way.together.put(one.outputs)
        return way.together.built(whole)

    def _crew(self, count: int) -> Any:
        enough = min(number for number in self._places if number >= count)
        return crew_of(self._places[enough], self)

    def _current(self, shape: Any, way: Way, count: int) -> list[View]:
        views = self._views.pop(shape, [])
        self._views[shape] = views  # the last one used is the last one in
        if len(self._views) > SHAPES:
            del self._views[next(iter(self._views))]
        for number in range(len(views), count):
            views.append(View(self._model, way.changing, first=not number))
        return views


_exchanged: list[Any] = []
_lock = threading.Lock()


def exchange() -> None:
    """Functions that work on the whole batch know from now on when they are given a part of it."""
    from cputrain.runtime.exchange import Exchanged

    with _lock:
        if _exchanged:
            return
        for place, name, ours_of in (
            *random_functions.replacements(),
            *batch_norm.replacements(),
        ):
            _exchanged.append(Exchanged(place, name, ours_of(getattr(place, name))))

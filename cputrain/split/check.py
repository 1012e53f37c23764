"""Whether a model gives the same when its batch is divided: tried on a few samples, before it is.

The few samples go through the model once whole and once in two uneven parts, with the same random
numbers; outputs, buffers and gradients must agree. Nothing of it stays: not a buffer, not a random
number. What parts of different sizes return shows along which dimension they belong together.
"""

from __future__ import annotations

import random
import sys

import torch
from torch import nn

from cputrain.record import Record
from cputrain.split.batch import Together, leaves_of
from cputrain.split.call import Call
from cputrain.split.draws import Draws, divided_dim
from cputrain.split.views import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.split.batch import Arguments
    from cputrain.split.call import Calls
    from cputrain.split.crew import Crew
    from cputrain.split.draws import Divided

SAMPLES = 8
"""So many are tried."""

FEWEST = 3
"""Of fewer than these there are no two uneven parts."""

EXACTLY = 1e-8
"""How far two results in float64 may be apart, relative to the norm."""

ROUGHLY = 5e-2
"""How far those in other types may: batch norm of few samples blows up what rounding does."""

SMALL = 1e-2
"""A gradient that is a smaller part than this of all of them is compared as if it were this."""


class CannotSplitError(Exception):
    """Why a model is left as it is, as half a sentence."""


class Way(Record):
    """How calls of one kind are divided."""

    together: Together
    """How outputs are put together."""

    draws: tuple[Divided, ...]
    """How each draw of random numbers is divided."""

    changing: frozenset[str]
    """Buffers that a forward writes to."""


class Ran(Record):
    """What came of the few samples."""

    leaves: list[Any]
    """Of the output."""

    form: Any
    """Of the output."""

    buffers: dict[str, torch.Tensor]
    """As they were afterwards."""

    random: torch.Tensor
    """The state of the generator afterwards."""


def find_way(model: nn.Module, call: Calls, arguments: Arguments, crew: Crew) -> Way:
    """How to divide such calls. Raises CannotSplitError, or what the model itself raises."""
    look_at(model)
    torchs, others = torch.get_rng_state(), _OtherNumbers()
    count = min(arguments.size, SAMPLES)
    try:
        try:
            return _compared(model, call, arguments.first(count, exactly=True), crew, exactly=True)
        except RuntimeError:  # float64 may not be what it takes
            torch.set_rng_state(torchs)
            few = arguments.first(count, exactly=False)
            return _compared(model, call, few, crew, exactly=False)
    finally:
        torch.set_rng_state(torchs)
        if others.put_back():
            raise CannotSplitError("it draws random numbers from Python or NumPy as well")


def look_at(model: nn.Module) -> None:
    """Raises CannotSplitError for what can be seen without running it."""
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule):
            raise CannotSplitError(f"{where} is compiled by torch.jit")
        if module.__dict__.get("_compiled_call_impl") is not None or hasattr(module, "_orig_mod"):
            raise CannotSplitError(f"{where} is compiled by torch.compile")
        for hooks in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        ):
            for hook in module.__dict__.get(hooks, {}).values():
                if not type(hook).__module__.startswith("torch.nn.utils."):
                    raise CannotSplitError(
                        f"{where} has a hook, which would see parts of the batch"
                    )
        for parameter in module.parameters(recurse=False):
            if type(parameter) is not nn.Parameter:
                raise CannotSplitError(f"{where} has a parameter of {type(parameter).__name__}")
            if parameter.device.type != "cpu":
                raise CannotSplitError(f"{where} is on {parameter.device}")


def _compared(model: nn.Module, call: Calls, few: Arguments, crew: Crew, *, exactly: bool) -> Way:
    before_all = torch.get_rng_state()
    every = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False))
    alone = View(model, every, exactly=exactly)
    args, options = few.built(few.part((0, few.size)))
    leaves, form = leaves_of(call(alone.model, *args, **options))
    whole = Ran(
        leaves=leaves, form=form, buffers=dict(alone.model.named_buffers()),
        random=torch.get_rng_state(),
    )  # fmt: skip
    torch.set_rng_state(before_all)
    views = [View(model, every, exactly=exactly) for _ in range(2)]
    before = [_attributes(view.model) for view in views]
    less = (few.size - 1) // 2
    ranges = [(0, less), (less, few.size)]
    draws = Draws(2)
    divided = Call(crew, views, call, few, ranges, draws)
    divided.forward()
    for view, attributes in zip(views, before, strict=True):
        _same_attributes(view.model, attributes)
    if draws.unseen or not torch.equal(torch.get_rng_state(), whole.random):
        raise CannotSplitError(
            "it draws random numbers in a way that cannot be divided (an nn.LSTM or nn.GRU with "
            "dropout does, for example)"
        )
    together = _together(whole, divided, [end - begin for begin, end in ranges])
    put = together.put([_plain(leaves) for leaves in divided.outputs])
    for number, (leaf, found) in enumerate(zip(whole.leaves, put, strict=True)):
        _same(f"its output {number}" if len(put) > 1 else "its output", leaf, found, 0.0)
    buffers = dict(views[0].model.named_buffers())
    for name, buffer in whole.buffers.items():
        _same(f"the buffer {name}", buffer, buffers[name], 0.0)
    _same_gradients(model, few, alone, args, options, whole, divided, together)
    changing = frozenset(
        name
        for name, buffer in model.named_buffers(remove_duplicate=False)
        if name in whole.buffers and not _equal(whole.buffers[name].to(buffer.dtype), buffer)
    )
    return Way(together=together, draws=tuple(draws.found), changing=changing)


def _together(whole: Ran, divided: Call, sizes: Sequence[int]) -> Together:
    """Along which dimension the parts of each output lie."""
    if divided.form != whole.form:
        raise CannotSplitError("the form of its output depends on the size of the batch")
    dims: list[int | None] = []
    for number, leaf in enumerate(whole.leaves):
        parts = [leaves[number] for leaves in divided.outputs]
        if not isinstance(leaf, torch.Tensor):
            if any(part is not leaf and part != leaf for part in parts):
                raise CannotSplitError(
                    f"its output {number} is {leaf!r}, and {parts[0]!r} for a part of the batch"
                )
            dims.append(None)
            continue
        dim = divided_dim([part.shape for part in parts], list(sizes))
        if dim is None and leaf.requires_grad and leaf.is_floating_point() and leaf.dim() == 0:
            raise CannotSplitError(
                "it returns a number made of the whole batch, a loss for example: have it return "
                "what the loss is made of"
            )
        dims.append(dim)
    return Together(form=whole.form, dims=tuple(dims))


def _same_gradients(
    model: nn.Module,
    few: Arguments,
    alone: View,
    args: tuple[Any, ...],
    options: dict[str, Any],
    whole: Ran,
    divided: Call,
    together: Together,
) -> None:
    numbers = [
        number
        for number, leaf in enumerate(whole.leaves)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    inside, _ = leaves_of((args, options))
    inputs = [inside[number] for number in few.differentiable]
    every = [*inputs, *alone.parameters]
    needed = [one.requires_grad for one in every]
    if not numbers or not any(needed):
        return
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(whole.leaves[number].shape, generator=generator).to(whole.leaves[number].dtype)
        for number in numbers
    ]
    found = divided.backward(
        [(number, together.dims[number], one) for number, one in zip(numbers, given, strict=True)],
        needed,
        keep=False,
    )
    wanted = [one for one, need in zip(every, needed, strict=True) if need]
    right = torch.autograd.grad(
        [whole.leaves[number] for number in numbers], wanted, given, allow_unused=True
    )
    names = [f"input {number}" for number in few.differentiable]
    names += [name for name, _ in model.named_parameters()]
    kept = [name for name, need in zip(names, needed, strict=True) if need]
    mine = [one for one, need in zip(found, needed, strict=True) if need]
    norms = [0.0 if one is None else float(one.norm()) for one in right]
    for name, one, other in zip(kept, right, mine, strict=True):
        if (one is None) != (other is None):
            raise CannotSplitError(f"the gradient of {name} is there or not, as it is divided")
        if one is not None:
            _same(f"the gradient of {name}", one, other, SMALL * max(norms))


def _same(what: str, leaf: Any, found: Any, least: float) -> None:
    if not isinstance(leaf, torch.Tensor):
        return
    if leaf.shape != found.shape:
        raise CannotSplitError(f"{what} has another shape when its batch is divided")
    with torch.no_grad():
        one, other = (tensor.detach().to_dense() for tensor in (leaf, found))
        if not (one.is_floating_point() or one.is_complex()):
            good = torch.equal(one, other)
            far = ""
        else:
            norm = max(float(one.norm()), least)
            distance = float((one - other).norm())
            good = distance <= (
                EXACTLY if one.dtype == torch.float64 else ROUGHLY
            ) * norm or _equal(one, other)
            far = f" by {distance / norm:.1e}" if norm else ""
    if not good:
        raise CannotSplitError(f"{what} differs{far} when its batch is divided")


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


def _plain(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _attributes(model: nn.Module) -> list[dict[str, Any]]:
    return [
        {**module.__dict__, **{f"{name} ": one for name, one in module._buffers.items()}}
        for module in model.modules()
    ]


def _same_attributes(model: nn.Module, before: Sequence[dict[str, Any]]) -> None:
    after = _attributes(model)
    for (name, module), held, holds in zip(model.named_modules(), before, after, strict=False):
        for attribute, value in holds.items():
            if attribute not in held or held[attribute] is not value:
                where = f"{name} ({type(module).__name__})" if name else type(module).__name__
                raise CannotSplitError(f"{where} sets self.{attribute.strip()} while it runs")


class _OtherNumbers:
    """The generators of Python and NumPy: put back, and asked whether they were used."""

    def __init__(self) -> None:
        self._pythons = random.getstate()
        self._numpy = sys.modules.get("numpy")
        self._numpys = None if self._numpy is None else self._numpy.random.get_state()

    def put_back(self) -> bool:
        """Whether anything was drawn from them."""
        used = random.getstate() != self._pythons
        random.setstate(self._pythons)
        if self._numpy is not None:
            now = self._numpy.random.get_state()
            used |= now[2:] != self._numpys[2:] or (now[1] != self._numpys[1]).any()
            self._numpy.random.set_state(self._numpys)
        return bool(used)

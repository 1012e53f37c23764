"""Runs a model once whole and once in parts, and puts beside each other what came of both.

With the same random numbers, and on views of the model: not a buffer of it is touched.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils import _pytree as tree

from cputrain.record import Record
from cputrain.split.execution.autograd import ShardedForward
from cputrain.split.execution.replica import Replica, home_of
from cputrain.split.execution.replica_group import ReplicaGroup
from cputrain.split.outputs import REDUCED, OutputLayout, leaves_of, shared_memory
from cputrain.split.proof.backward_functions import graph_nodes
from cputrain.split.proof.refusal import CannotSplitError
from cputrain.split.sync.rng import Generators, ShardedDraw, SharedDraws, divided_dim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from cputrain.split.batch import Arguments
    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor

SMALL = 1e-2
"""A gradient that is a smaller part than this of the largest is held against that: a bias before a
batch norm has none but rounding."""


class ShardingSpec(Record):
    """How calls of one kind are divided."""

    together: OutputLayout
    """How outputs are put together."""

    draws: tuple[ShardedDraw, ...]
    """How each draw of random numbers is divided."""

    changing: frozenset[str]
    """Buffers that a forward writes to."""


class Pair(Record):
    """One tensor, from the whole batch and from its parts."""

    what: str
    """ "output", "buffer" or "gradient"."""

    name: str
    """Of the parameter or buffer; of an output, its number."""

    whole: torch.Tensor
    """From the whole batch."""

    parts: torch.Tensor
    """From its parts."""

    least: float = 0.0
    """A norm that the difference is held against at least."""

    @property
    def difference(self) -> float:
        """How far the two are apart, relative to the norm; infinite where shapes differ."""
        one, other = (tensor.detach().to_dense() for tensor in (self.whole, self.parts))
        if one.shape != other.shape:
            return float("inf")
        if _equal(one, other):
            return 0.0
        if not (one.is_floating_point() or one.is_complex()):
            return float("inf")
        norm = max(float(one.norm()), self.least)
        return float((one - other).norm()) / norm if norm else float("inf")


class Compared:
    """Both runs of one call."""

    def __init__(
        self,
        model: nn.Module,
        call: Calls,
        arguments: Arguments,
        crew: Executor,
        sizes: Sequence[int],
        *,
        exactly: bool,
        way: ShardingSpec | None = None,
        devices: Sequence[torch.device] = (),
        reduced: frozenset[int] = frozenset(),
    ) -> None:
        """Raises CannotSplitError where the two cannot be put beside each other.

        Without a way, parts must be of different sizes: these show it. `devices` are where each
        part is computed, where the model is by default. `reduced` are the numbers of outputs that
        are losses of the whole batch.
        """
        self._model = model
        self._arguments = arguments
        home = home_of(model)
        generators = Generators(home)
        before = generators.get()
        every = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False))
        self._alone = Replica(model, every, exactly=exactly)
        whole = arguments.first(arguments.size, exactly=False)  # a model may write to it
        args, options = whole.built(whole.leaves)
        self._inside = tree.tree_leaves((args, options))
        self._leaves, form = leaves_of(call(self._alone.model, *args, **options))
        after = generators.get()
        generators.set(before)
        views = [
            Replica(
                model, every, exactly=exactly,
                device=None if not devices or devices[number] == home else devices[number],
            )
            for number in range(len(sizes))
        ]  # fmt: skip
        attributes = [_attributes(view.model) for view in views]
        draws = SharedDraws(len(sizes), None if way is None else way.draws, home)
        team = ReplicaGroup(crew.some(range(len(sizes))), views, home, devices[: len(sizes)])
        self._divided = ShardedForward(team, call, arguments, sizes, draws)
        self._divided.forward()
        for view, held in zip(views, attributes, strict=True):
            _same_attributes(view.model, held)
        if (way is None and draws.unseen) or not generators.are(after):
            raise CannotSplitError(
                "it draws random numbers in a way that cannot be divided (an nn.LSTM or nn.GRU "
                "with dropout does, for example)"
            )
        self._first = views[0].model
        self.way = way or ShardingSpec(
            together=self._together(form, list(sizes), reduced),
            draws=tuple(draws.found),
            changing=self._changing(),
        )
        """How such calls are divided."""

    def pairs(self) -> Iterator[Pair]:
        """Outputs, buffers and gradients."""
        together = self.way.together
        leaves = together.share(together.put(self._divided.outputs))
        for number, (whole, put) in enumerate(zip(self._leaves, leaves, strict=True)):
            if isinstance(whole, torch.Tensor):
                name = str(number) if len(self._leaves) > 1 else ""
                yield Pair(what="output", name=name, whole=whole, parts=put)
        parts = dict(self._first.named_buffers())
        buffers = dict(self._alone.model.named_buffers())
        for name, buffer in buffers.items():
            yield Pair(
                what="buffer", name=name, whole=buffer, parts=parts[name].to(buffer.device),
                least=_least_of_mean(name, buffers),
            )  # fmt: skip
        yield from self._gradients()

    def _together(self, form: Any, sizes: Sequence[int], reduced: frozenset[int]) -> OutputLayout:
        """Along which dimension the parts of each output lie."""
        if self._divided.form != form:
            raise CannotSplitError("the form of its output depends on the size of the batch")
        dims: list[int | None] = []
        for number, leaf in enumerate(self._leaves):
            parts = [leaves[number] for leaves in self._divided.outputs]
            if not isinstance(leaf, torch.Tensor):
                if any(part is not leaf and part != leaf for part in parts):
                    raise CannotSplitError(
                        f"its output {number} is {leaf!r}, and {parts[0]!r} for a part of the batch"
                    )
                dims.append(None)
                continue
            if number in reduced:
                dims.append(REDUCED)
                continue
            dim = divided_dim([part.shape for part in parts], list(sizes))
            if dim is None and leaf.requires_grad and leaf.is_floating_point() and not leaf.dim():
                raise CannotSplitError(
                    "it returns a number made of the whole batch, a loss for example: have it "
                    "return what the loss is made of"
                )
            dims.append(dim)
        return OutputLayout(dims=tuple(dims), shared=tuple(shared_memory(self._leaves)))

    def _changing(self) -> frozenset[str]:
        after = dict(self._alone.model.named_buffers(remove_duplicate=False))
        return frozenset(
            name
            for name, buffer in self._model.named_buffers(remove_duplicate=False)
            if not _equal(after[name].to(buffer.dtype), buffer)
        )

    def _look_beyond(self, every: Sequence[torch.Tensor]) -> None:
        """Raises where gradients go to what is neither a parameter nor an argument."""
        known = set(map(id, every))
        for node in graph_nodes(self._leaves):
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in known:
                raise CannotSplitError(
                    f"a gradient goes to a tensor of shape {tuple(variable.shape)} that is neither "
                    "a parameter nor an argument"
                )

    def _gradients(self) -> Iterator[Pair]:
        """Of every parameter and input, for a random gradient of the outputs."""
        numbers = [
            number
            for number, leaf in enumerate(self._leaves)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        differentiable = self._arguments.differentiable
        every = [self._inside[number] for number in differentiable] + self._alone.parameters
        needed = [one.requires_grad for one in every]
        if numbers:
            self._look_beyond(every)
        if not numbers or not any(needed):
            return
        leaves, dims = self._leaves, self.way.together.dims
        generator = torch.Generator().manual_seed(0)
        given = [
            torch.randn(leaves[number].shape, generator=generator, device="cpu").to(leaves[number])
            for number in numbers
        ]
        parts = self._divided.backward(
            [(number, dims[number], one) for number, one in zip(numbers, given, strict=True)],
            needed,
            keep=False,
        )
        wanted = [one for one, need in zip(every, needed, strict=True) if need]
        whole = iter(
            torch.autograd.grad(
                [leaves[number] for number in numbers], wanted, given, allow_unused=True
            )
        )
        names = [f"input {number}" for number in differentiable]
        names += [name for name, _ in self._model.named_parameters()]
        found = [
            (name, next(whole), part)
            for name, need, part in zip(names, needed, parts, strict=True)
            if need
        ]
        largest = max((float(one.norm()) for _, one, _ in found if one is not None), default=0.0)
        for name, one, other in found:
            if (one is None) != (other is None):
                raise CannotSplitError(f"the gradient of {name} is there or not, as it is divided")
            if one is not None and other is not None:
                yield Pair(
                    what="gradient", name=name, whole=one, parts=other, least=SMALL * largest
                )


def _least_of_mean(name: str, buffers: dict[str, torch.Tensor]) -> float:
    """Return the norm that a running mean is held against at least; 0 for other buffers.

    Behind another batch norm it is zero but for rounding: that is small beside a deviation.
    """
    if not name.endswith("running_mean"):
        return 0.0
    variance = buffers.get(name.removesuffix("mean") + "var")
    return 0.0 if variance is None else SMALL * float(variance.sum()) ** 0.5


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))


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

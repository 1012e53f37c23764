"""Run a model on a whole batch and on its shards, and pair the tensors of the two runs.

Both runs draw the same random numbers and use replicas of the model, whose buffers are not written.
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
from cputrain.split.proof.refusal import UNDIVIDED_DRAW, CannotSplitError
from cputrain.split.sync.rng import Generators, ShardedDraw, SharedDraws, divided_dim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from cputrain.split.batch import Arguments
    from cputrain.split.execution.autograd import Calls
    from cputrain.split.execution.executor import Executor

SMALL = 1e-2
"""Fraction of the largest gradient norm that is the lower bound of the norm in a relative error.

The gradient of a bias before a batch norm is zero but for rounding errors.
"""


class ShardingSpec(Record):
    """How calls with one kind of arguments are sharded."""

    together: OutputLayout
    """How the outputs of shards are concatenated."""

    draws: tuple[ShardedDraw, ...]
    """How the random numbers of each draw are sharded, in the order of the draws."""

    changing: frozenset[str]
    """Names of the buffers that a forward writes to."""


class Pair(Record):
    """One tensor as computed from the whole batch and from its shards."""

    what: str
    """ "output", "buffer" or "gradient"."""

    name: str
    """Name of the parameter or buffer; index of an output, empty if there is a single output."""

    whole: torch.Tensor
    """The tensor from the whole batch."""

    parts: torch.Tensor
    """The tensor from the shards."""

    least: float = 0.0
    """Lower bound of the norm in the relative difference."""

    @property
    def difference(self) -> float:
        """Norm of the difference relative to that of `whole`; infinite where shapes differ."""
        whole, sharded = (tensor.detach().to_dense() for tensor in (self.whole, self.parts))
        if whole.shape != sharded.shape:
            return float("inf")
        if _equal(whole, sharded):
            return 0.0
        if not (whole.is_floating_point() or whole.is_complex()):
            return float("inf")
        norm = max(float(whole.norm()), self.least)
        return float((whole - sharded).norm()) / norm if norm else float("inf")


class ShardingComparison:
    """Run one call on the whole batch and on shards, and pair the results."""

    def __init__(
        self,
        model: nn.Module,
        call: Calls,
        arguments: Arguments,
        executor: Executor,
        sizes: Sequence[int],
        *,
        exactly: bool,
        spec: ShardingSpec | None = None,
        devices: Sequence[torch.device] = (),
        reduced: frozenset[int] = frozenset(),
    ) -> None:
        """Run both forwards.

        Args:
            sizes: number of samples of each shard. Without a `spec` they must differ, as the batch
                dimension of each output is inferred from them.
            exactly: whether to compute in float64.
            spec: how the call is sharded; inferred from the two runs by default.
            devices: where each shard is computed; the home device by default.
            reduced: indices of the outputs that are losses of the whole batch.

        Raises:
            CannotSplitError: the results of the two runs cannot be paired.
        """
        self._model = model
        self._arguments = arguments
        home = home_of(model)
        generators = Generators(home)
        before = generators.get()
        buffer_names = frozenset(name for name, _ in model.named_buffers(remove_duplicate=False))
        self._whole_replica = Replica(model, buffer_names, exactly=exactly)
        batch = arguments.first(arguments.size, exactly=False)  # a model may write to it
        args, options = batch.built(batch.leaves)
        self._inputs = tree.tree_leaves((args, options))
        self._outputs, structure = leaves_of(call(self._whole_replica.model, *args, **options))
        after = generators.get()
        generators.set(before)
        replicas = [
            Replica(
                model, buffer_names, exactly=exactly,
                device=None if not devices or devices[index] == home else devices[index],
            )
            for index in range(len(sizes))
        ]  # fmt: skip
        attributes = [_attributes(replica.model) for replica in replicas]
        draws = SharedDraws(len(sizes), None if spec is None else spec.draws, home)
        group = ReplicaGroup(
            executor.some(range(len(sizes))), replicas, home, devices[: len(sizes)]
        )
        self._sharded = ShardedForward(group, call, arguments, sizes, draws)
        self._sharded.forward()
        for replica, before_attributes in zip(replicas, attributes, strict=True):
            _same_attributes(replica.model, before_attributes)
        if (spec is None and draws.unseen) or not generators.are(after):
            raise CannotSplitError(f"it {UNDIVIDED_DRAW}")
        self._first_replica = replicas[0].model
        self.spec = spec or ShardingSpec(
            together=self._infer_layout(structure, list(sizes), reduced),
            draws=tuple(draws.draws),
            changing=self._changed_buffers(),
        )
        """How calls of this kind are sharded."""

    def pairs(self) -> Iterator[Pair]:
        """Iterate over the pairs of outputs, then buffers, then gradients."""
        layout = self.spec.together
        sharded_outputs = layout.share(layout.put(self._sharded.outputs))
        for index, (output, sharded_output) in enumerate(
            zip(self._outputs, sharded_outputs, strict=True)
        ):
            if isinstance(output, torch.Tensor):
                name = str(index) if len(self._outputs) > 1 else ""
                yield Pair(what="output", name=name, whole=output, parts=sharded_output)
        replica_buffers = dict(self._first_replica.named_buffers())
        buffers = dict(self._whole_replica.model.named_buffers())
        for name, buffer in buffers.items():
            yield Pair(
                what="buffer", name=name, whole=buffer,
                parts=replica_buffers[name].to(buffer.device),
                least=_least_of_mean(name, buffers),
            )  # fmt: skip
        yield from self._gradients()

    def _infer_layout(
        self, structure: Any, sizes: Sequence[int], reduced: frozenset[int]
    ) -> OutputLayout:
        """Infer the batch dimension of each output from the shapes of the shards' outputs."""
        if self._sharded.form != structure:
            raise CannotSplitError("the form of its output depends on the size of the batch")
        dims: list[int | None] = []
        for index, leaf in enumerate(self._outputs):
            shard_leaves = [leaves[index] for leaves in self._sharded.outputs]
            if not isinstance(leaf, torch.Tensor):
                if any(
                    shard_leaf is not leaf and shard_leaf != leaf for shard_leaf in shard_leaves
                ):
                    raise CannotSplitError(
                        f"its output {index} is {leaf!r}, and {shard_leaves[0]!r} for a part "
                        "of the batch"
                    )
                dims.append(None)
                continue
            if index in reduced:
                dims.append(REDUCED)
                continue
            dim = divided_dim([shard_leaf.shape for shard_leaf in shard_leaves], list(sizes))
            if dim is None and leaf.requires_grad and leaf.is_floating_point() and not leaf.dim():
                raise CannotSplitError(
                    "it returns a number made of the whole batch, a loss for example: have it "
                    "return what the loss is made of"
                )
            dims.append(dim)
        return OutputLayout(dims=tuple(dims), shared=tuple(shared_memory(self._outputs)))

    def _changed_buffers(self) -> frozenset[str]:
        """Return the names of the buffers whose values the forward has changed."""
        after = dict(self._whole_replica.model.named_buffers(remove_duplicate=False))
        return frozenset(
            name
            for name, buffer in self._model.named_buffers(remove_duplicate=False)
            if not _equal(after[name].to(buffer.dtype), buffer)
        )

    def _check_graph_leaves(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raise where the graph has a leaf that is neither a parameter nor an argument."""
        known_ids = set(map(id, inputs))
        for node in graph_nodes(self._outputs):
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in known_ids:
                raise CannotSplitError(
                    f"a gradient goes to a tensor of shape {tuple(variable.shape)} that is neither "
                    "a parameter nor an argument"
                )

    def _gradients(self) -> Iterator[Pair]:
        """Iterate over gradient pairs of parameters and inputs, for random output gradients."""
        indices = [
            index
            for index, leaf in enumerate(self._outputs)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        differentiable = self._arguments.differentiable
        inputs = [self._inputs[index] for index in differentiable] + self._whole_replica.parameters
        needed = [tensor.requires_grad for tensor in inputs]
        if indices:
            self._check_graph_leaves(inputs)
        if not indices or not any(needed):
            return
        leaves, dims = self._outputs, self.spec.together.dims
        generator = torch.Generator().manual_seed(0)
        output_gradients = [
            torch.randn(leaves[index].shape, generator=generator, device="cpu").to(leaves[index])
            for index in indices
        ]
        sharded_gradients = self._sharded.backward(
            [
                (index, dims[index], tensor)
                for index, tensor in zip(indices, output_gradients, strict=True)
            ],
            needed,
            keep=False,
        )
        wanted = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
        gradients = iter(
            torch.autograd.grad(
                [leaves[index] for index in indices], wanted, output_gradients, allow_unused=True
            )
        )
        names = [f"input {index}" for index in differentiable]
        names += [name for name, _ in self._model.named_parameters()]
        pairs = [
            (name, next(gradients), sharded_gradient)
            for name, is_needed, sharded_gradient in zip(
                names, needed, sharded_gradients, strict=True
            )
            if is_needed
        ]
        largest = max(
            (float(tensor.norm()) for _, tensor, _ in pairs if tensor is not None), default=0.0
        )
        for name, tensor, sharded in pairs:
            if (tensor is None) != (sharded is None):
                raise CannotSplitError(f"the gradient of {name} is there or not, as it is divided")
            if tensor is not None and sharded is not None:
                yield Pair(
                    what="gradient", name=name, whole=tensor, parts=sharded, least=SMALL * largest
                )


def _least_of_mean(name: str, buffers: dict[str, torch.Tensor]) -> float:
    """Return the lower bound of the norm for a running mean; 0 for other buffers.

    After another batch norm the mean is zero but for rounding errors, which are small compared with
    the standard deviation.
    """
    if not name.endswith("running_mean"):
        return 0.0
    variance = buffers.get(name.removesuffix("mean") + "var")
    return 0.0 if variance is None else SMALL * float(variance.sum()) ** 0.5


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether shapes and values are equal, where NaN equals NaN and 0."""
    return left.shape == right.shape and torch.equal(
        torch.nan_to_num(left), torch.nan_to_num(right)
    )


def _attributes(model: nn.Module) -> list[dict[str, Any]]:
    """Return each module's attributes and buffers; a trailing space marks names of buffers."""
    return [
        {**module.__dict__, **{f"{name} ": buffer for name, buffer in module._buffers.items()}}
        for module in model.modules()
    ]


def _same_attributes(model: nn.Module, before: Sequence[dict[str, Any]]) -> None:
    """Raise CannotSplitError where a forward has set an attribute of a module."""
    after = _attributes(model)
    for (name, module), old_attributes, new_attributes in zip(
        model.named_modules(), before, after, strict=False
    ):
        for attribute, value in new_attributes.items():
            if attribute not in old_attributes or old_attributes[attribute] is not value:
                where = f"{name} ({type(module).__name__})" if name else type(module).__name__
                raise CannotSplitError(f"{where} sets self.{attribute.strip()} while it runs")

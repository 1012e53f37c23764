"""Random numbers of a sharded batch: those that the whole batch would have drawn.

Every draw of a replica is a slice of the whole batch's draw, from the same generator at the same
position. The first replica that reaches a draw makes it for all. So the numbers depend neither on
the shard sizes nor on timing.
"""

from __future__ import annotations

import threading

import torch

from cputrain.errors import PartsDiffer
from cputrain.record import Record
from cputrain.split.devices import CPU, SideStream, generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.split.execution.context import ReplicaContext

    Order = tuple[int, ...]
    """Dimensions in memory order, the outermost first."""

    States = list[torch.Tensor]
    """States of generators."""

    Fill = Callable[[torch.Size, Order, torch.device], torch.Tensor]
    """Creates a tensor of a shape, memory order and device, filled from the generator."""


class Generators:
    """The generators that a model on this device draws from."""

    def __init__(self, home: torch.device) -> None:
        self._all = generators(home)

    def get(self) -> States:
        """Return the generators' states."""
        return [generator.get_state() for generator in self._all]

    def set(self, states: States) -> None:
        """Restore the generators' states."""
        for generator, state in zip(self._all, states, strict=True):
            generator.set_state(state)

    def are(self, states: States) -> bool:
        """Return whether the states are unchanged since."""
        return all(map(torch.equal, self.get(), states))


class ShardedDraw(Record):
    """How a draw is sharded."""

    dim: int | None
    """Batch dimension; None where all replicas get the same numbers."""

    order: Order
    """Memory order, which a shard with a single sample does not show."""

    device: torch.device
    """Device on which the whole batch draws.

    A replica on another device cannot tell a draw on the model's device from one on the CPU.
    """


class _Draw:
    """One draw for all replicas.

    On a GPU it runs on a side stream: a replica on the CPU does not wait for other work on the GPU.
    """

    def __init__(self, states: States, num_replicas: int, device: torch.device) -> None:
        self.states = states
        """The generators' states before the draw."""
        self.side_stream = SideStream(device)
        self.whole: torch.Tensor | None = None
        """The whole batch's numbers, until every replica has its slice."""
        self.pending = set(range(num_replicas))

    def make(self, fill: Fill, shape: torch.Size, sharding: ShardedDraw) -> torch.Tensor:
        """Draw for the whole batch."""
        with self.side_stream.begin():
            self.whole = whole = fill(shape, sharding.order, sharding.device)
        self.side_stream.end()
        return whole


class SharedDraws:
    """The random draws of one call, in order."""

    def __init__(
        self,
        num_replicas: int,
        known_draws: Sequence[ShardedDraw] | None = None,
        home: torch.device = CPU,
    ) -> None:
        self._num_replicas = num_replicas
        self.home = home
        """The model's device, on which the whole batch draws."""
        self._generators = Generators(home)
        self._lock = threading.Lock()
        self._draws: list[_Draw] = []
        self._known_draws = known_draws
        self._states_after = self._generators.get()
        self._is_unseen = False
        self.draws: list[ShardedDraw] = []
        """How each draw is sharded, found from shards of different sizes if it was unknown."""

    @property
    def unseen(self) -> bool:
        """Whether anything else drew from the generators; tracked only while finding shardings."""
        return self._is_unseen or not self._generators.are(self._states_after)

    def take(
        self,
        context: ReplicaContext,
        shape: torch.Size,
        order: Order,
        device: torch.device,
        fill: Fill,
    ) -> torch.Tensor:
        """Return a replica's slice of its next draw, on the device where the replica draws."""
        index = context.num_draws
        context.num_draws += 1
        sharding = self._sharding_of(index, context, shape, order, device)
        dim = sharding.dim
        if dim is None:
            whole, side_stream = self._whole_draw(index, context, shape, sharding, fill)
            return side_stream.to(whole, device).clone()
        whole_size = shape[dim] * context.size // (context.end - context.begin)
        whole_shape = torch.Size([*shape[:dim], whole_size, *shape[dim + 1 :]])
        whole, side_stream = self._whole_draw(index, context, whole_shape, sharding, fill)
        rows_per_sample = whole_size // context.size
        shard = whole.narrow(
            dim, context.begin * rows_per_sample, (context.end - context.begin) * rows_per_sample
        )
        return side_stream.to(shard, device)

    def _sharding_of(
        self,
        index: int,
        context: ReplicaContext,
        shape: torch.Size,
        order: Order,
        device: torch.device,
    ) -> ShardedDraw:
        if self._known_draws is not None:
            if index >= len(self._known_draws):
                raise PartsDiffer(
                    "the model",
                    "must draw as many random numbers in every forward",
                    found=f"draw {index + 1} where there were {len(self._known_draws)} before",
                    do="Train it unsplit.",
                )
            return self._known_draws[index]
        shard_draw = (context.end - context.begin, shape, order, context.device, device)
        gathered = context.barrier.all_gather(f"draw {index + 1}", context.number, shard_draw)
        # a replica that draws on its own device does what the model does on the home device
        at_home = [
            draw_device
            for _, _, _, replica_device, draw_device in gathered
            if replica_device == self.home
        ]
        on_own_device = [
            draw_device
            for _, _, _, replica_device, draw_device in gathered
            if replica_device != draw_device
        ]
        sharding = ShardedDraw(
            dim=divided_dim(
                [replica_draw[1] for replica_draw in gathered],
                [replica_draw[0] for replica_draw in gathered],
            ),
            order=max(replica_draw[:3] for replica_draw in gathered)[2],
            device=(at_home or on_own_device or [self.home])[0],
        )
        if context.number == 0:
            self.draws.append(sharding)
        return sharding

    def _whole_draw(
        self,
        index: int,
        context: ReplicaContext,
        shape: torch.Size,
        sharding: ShardedDraw,
        fill: Fill,
    ) -> tuple[torch.Tensor, SideStream]:
        with self._lock:
            if index == len(self._draws):
                # the next draw continues this sequence, so other replicas wait until it is made
                states_before = self._generators.get()
                self._is_unseen |= self._known_draws is None and not self._generators.are(
                    self._states_after
                )
                self._draws.append(_Draw(states_before, self._num_replicas, sharding.device))
                self._draws[index].make(fill, shape, sharding)
                self._states_after = self._generators.get()
            draw = self._draws[index]
            if context.number not in draw.pending or draw.whole is None:
                return self._repeat(draw, shape, sharding, fill)
            whole = draw.whole
            draw.pending.remove(context.number)
            if not draw.pending:
                draw.whole = None
        if whole.shape != shape:
            raise PartsDiffer(
                "the model",
                "must draw the same random numbers in every replica",
                found=f"shapes {tuple(whole.shape)} and {tuple(shape)}",
                do="Train it unsplit.",
            )
        return whole, draw.side_stream

    def _repeat(
        self, draw: _Draw, shape: torch.Size, sharding: ShardedDraw, fill: Fill
    ) -> tuple[torch.Tensor, SideStream]:
        """Repeat a draw for a replica that recomputes it in a backward."""
        states_now = self._generators.get()
        self._generators.set(draw.states)
        repeated = _Draw(draw.states, 1, sharding.device)
        try:
            return repeated.make(fill, shape, sharding), repeated.side_stream
        finally:
            self._generators.set(states_now)


def divided_dim(shapes: list[torch.Size], sizes: list[int]) -> int | None:
    """Return the dimension that is proportional to the shard sizes; None if there is none."""
    first = shapes[0]
    for dim in range(len(first)):
        if all(
            len(shape) == len(first) and shape[dim] * sizes[0] == first[dim] * size
            for shape, size in zip(shapes, sizes, strict=True)
        ) and any(shape[dim] != first[dim] for shape in shapes):
            return dim
    return None

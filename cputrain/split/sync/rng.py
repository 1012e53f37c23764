"""Random numbers of a divided batch: those that the whole batch would have had.

Every draw of a replica is a slice of the draw that an undivided forward would have made, from the
same generator, at the same place in its sequence: the one who comes first makes it for all. So the
numbers do not depend on how the batch is divided, or on who is faster.
"""

from __future__ import annotations

import threading

import torch

from cputrain.errors import PartsDiffer
from cputrain.record import Record
from cputrain.split.devices import CPU, Aside, generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.split.execution.context import ReplicaContext

    Order = tuple[int, ...]
    """Dimensions, the outermost in memory first."""

    States = list[torch.Tensor]
    """Of generators."""

    Fill = Callable[[torch.Size, Order, torch.device], torch.Tensor]
    """Makes a tensor of this shape on this device, filled from its generator in this order."""


class Generators:
    """Those that a model on this device draws from."""

    def __init__(self, home: torch.device) -> None:
        self._all = generators(home)

    def get(self) -> States:
        """Their states."""
        return [one.get_state() for one in self._all]

    def set(self, states: States) -> None:
        """Put them back."""
        for one, state in zip(self._all, states, strict=True):
            one.set_state(state)

    def are(self, states: States) -> bool:
        """Whether nothing was drawn since."""
        return all(map(torch.equal, self.get(), states))


class ShardedDraw(Record):
    """How a draw is divided."""

    dim: int | None
    """The dimension along which it is; None where all parts have the same."""

    order: Order
    """How it lies in memory. A part with a single sample does not show it."""

    device: torch.device
    """Where the whole batch draws it. A part elsewhere cannot tell a draw that is made where the
    model is from one that is always made on the CPU."""


class _Draw:
    """One draw for all parts.

    On a GPU it is made aside: a part on the CPU that comes for its slice does not wait for all that
    the GPU has been given to do meanwhile.
    """

    def __init__(self, states: States, parties: int, device: torch.device) -> None:
        self.states = states
        """The generators', before it."""
        self.aside = Aside(device)
        self.whole: torch.Tensor | None = None
        """Kept until everybody has taken a slice."""
        self.waiting = set(range(parties))

    def make(self, fill: Fill, shape: torch.Size, divided: ShardedDraw) -> torch.Tensor:
        """All of it."""
        with self.aside.begin():
            self.whole = whole = fill(shape, divided.order, divided.device)
        self.aside.end()
        return whole


class SharedDraws:
    """The draws of one call, in their order."""

    def __init__(
        self, parties: int, known: Sequence[ShardedDraw] | None = None, home: torch.device = CPU
    ) -> None:
        self._parties = parties
        self.home = home
        """Where the model is, and draws."""
        self._generators = Generators(home)
        self._lock = threading.Lock()
        self._draws: list[_Draw] = []
        self._known = known
        self._after = self._generators.get()
        self._unseen = False
        self.found: list[ShardedDraw] = []
        """How each is divided, where that is not known: what parts of different sizes ask for."""

    @property
    def unseen(self) -> bool:
        """Whether anything else has drawn from the generator; known while dimensions are not."""
        return self._unseen or not self._generators.are(self._after)

    def take(
        self,
        part: ReplicaContext,
        shape: torch.Size,
        order: Order,
        device: torch.device,
        fill: Fill,
    ) -> torch.Tensor:
        """The part's slice of the next draw, on the device where the part makes it."""
        number = part.drawn
        part.drawn += 1
        divided = self._divided(number, part, shape, order, device)
        dim = divided.dim
        if dim is None:
            whole, aside = self._whole(number, part, shape, divided, fill)
            return aside.given(whole, device).clone()
        rest = shape[dim] * part.size // (part.end - part.begin)
        whole_shape = torch.Size([*shape[:dim], rest, *shape[dim + 1 :]])
        whole, aside = self._whole(number, part, whole_shape, divided, fill)
        each = rest // part.size
        mine = whole.narrow(dim, part.begin * each, (part.end - part.begin) * each)
        return aside.given(mine, device)

    def _divided(
        self,
        number: int,
        part: ReplicaContext,
        shape: torch.Size,
        order: Order,
        device: torch.device,
    ) -> ShardedDraw:
        if self._known is not None:
            if number >= len(self._known):
                raise PartsDiffer(
                    "the model",
                    "must draw as many random numbers in every forward",
                    found=f"draw {number + 1} where there were {len(self._known)} before",
                    do="Train it unsplit.",
                )
            return self._known[number]
        own = (part.end - part.begin, shape, order, part.device, device)
        everybody = part.meeting.meet(f"draw {number + 1}", part.number, own)
        # a part elsewhere that draws where it is does what the whole does where the model is
        at_home = [made for _, _, _, where, made in everybody if where == self.home]
        apart = [made for _, _, _, where, made in everybody if where != made]
        divided = ShardedDraw(
            dim=divided_dim([one[1] for one in everybody], [one[0] for one in everybody]),
            order=max(one[:3] for one in everybody)[2],
            device=(at_home or apart or [self.home])[0],
        )
        if part.number == 0:
            self.found.append(divided)
        return divided

    def _whole(
        self, number: int, part: ReplicaContext, shape: torch.Size, divided: ShardedDraw, fill: Fill
    ) -> tuple[torch.Tensor, Aside]:
        with self._lock:
            if number == len(self._draws):
                # the next draw begins where this one ends, so others wait until it is made
                before = self._generators.get()
                self._unseen |= self._known is None and not self._generators.are(self._after)
                self._draws.append(_Draw(before, self._parties, divided.device))
                self._draws[number].make(fill, shape, divided)
                self._after = self._generators.get()
            draw = self._draws[number]
            if part.number not in draw.waiting or draw.whole is None:
                return self._again(draw, shape, divided, fill)
            whole = draw.whole
            draw.waiting.remove(part.number)
            if not draw.waiting:
                draw.whole = None
        if whole.shape != shape:
            raise PartsDiffer(
                "the model",
                "must draw the same random numbers in every replica",
                found=f"shapes {tuple(whole.shape)} and {tuple(shape)}",
                do="Train it unsplit.",
            )
        return whole, draw.aside

    def _again(
        self, draw: _Draw, shape: torch.Size, divided: ShardedDraw, fill: Fill
    ) -> tuple[torch.Tensor, Aside]:
        """As it was, for a part that runs a second time: what is recomputed in a backward."""
        now = self._generators.get()
        self._generators.set(draw.states)
        again = _Draw(draw.states, 1, divided.device)
        try:
            return again.make(fill, shape, divided), again.aside
        finally:
            self._generators.set(now)


def divided_dim(shapes: list[torch.Size], sizes: list[int]) -> int | None:
    """The dimension in which parts of these sizes differ as the sizes do; None where none does."""
    first = shapes[0]
    for dim in range(len(first)):
        if all(
            len(shape) == len(first) and shape[dim] * sizes[0] == first[dim] * size
            for shape, size in zip(shapes, sizes, strict=True)
        ) and any(shape[dim] != first[dim] for shape in shapes):
            return dim
    return None

"""A product in tiles that is asked for again and again: all but where its tensors are is known."""

from __future__ import annotations

from cputrain.opencl.tiles import groups, tiled
from cputrain.opencl.tuning import tuning_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch

    from cputrain.opencl.device import Device
    from cputrain.opencl.tensor import OclTensor
    from cputrain.opencl.tiles import Tile


class At:
    """The place of a tensor among arguments: its memory, and where in that it begins."""

    def __init__(self, number: int, more: int = 0, *, whole: bool = False) -> None:
        """Of those that are given to `ask`; `more` elements behind its first. A `whole` one begins
        with its memory, and that is not told."""
        self.number, self.more, self.whole = number, more, whole


class Product:
    """One."""

    def __init__(
        self,
        device: Device,
        heads: tuple[str, ...],
        kind: torch.dtype,
        defined: tuple[tuple[str, Any], ...],
        types: tuple[Any, ...],
        size: tuple[int, int, int, int],
        pattern: Sequence[Any],
    ) -> None:
        """Of this `size`: rows, columns, what is added up, and how many there are."""
        self._device, self._heads, self._kind = device, heads, kind
        self._defined, self._types, self._size = defined, types, size
        flat = _flat(pattern)
        self._fixed = [None if isinstance(one, At) else one for one in flat]
        self._slots = [(place, one) for place, one in enumerate(flat) if isinstance(one, At)]
        self._chosen: tuple[Any, tuple[int, ...], tuple[int, ...]] | None = None

    def ask(self, tensors: Sequence[OclTensor], last: Sequence[Any] = ()) -> None:
        """Have it computed for these; `last` are arguments behind all others."""
        arguments: list[Any] = self._fixed.copy()
        for place, one in self._slots:
            tensor = tensors[one.number]
            arguments[place] = tensor.memory.buffer
            if not one.whole:
                arguments[place + 1] = tensor.storage_offset() + one.more
        arguments += last
        if self._chosen is None:
            what = f"{' '.join(self._heads)} {self._kind} {self._defined}"
            tile = tuning_of(self._device).tile(
                what,
                *self._size,
                self._kind.itemsize,
                lambda tile: self._ask(self._with(tile), arguments),
            )
            self._chosen = self._with(tile)
        self._ask(self._chosen, arguments)

    def _with(self, tile: Tile) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        """The kernel, and the items that it is asked of, all and in a group."""
        rows, columns, _, batch = self._size
        across, down = groups(tile, rows, columns)
        ready = tiled(self._device, self._heads, tile, self._kind, self._defined, self._types)
        return ready, (across * tile.items, down, batch), (tile.items, 1, 1)

    def _ask(
        self, chosen: tuple[Any, tuple[int, ...], tuple[int, ...]], arguments: list[Any]
    ) -> None:
        ready, items, group = chosen
        self._device.ask(ready, items, group, *arguments)


def _flat(pattern: Sequence[Any]) -> list[Any]:
    """With room for where a tensor begins."""
    found: list[Any] = []
    for one in pattern:
        found.append(one)
        if isinstance(one, At) and not one.whole:
            found.append(None)
    return found

"""Tiled matrix product with fixed shapes: only the tensors differ between launches."""

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
    """Placeholder of a tensor in an argument pattern: its buffer and its storage offset."""

    def __init__(self, number: int, more: int = 0, *, whole: bool = False) -> None:
        """Refer to a tensor of the launch.

        Args:
            number: Index among the tensors of the launch.
            more: Elements to add to the storage offset.
            whole: Whether the tensor begins with its buffer, so that no offset is passed.
        """
        self.number, self.more, self.whole = number, more, whole


class Product:
    """A tiled product for a device, kernel, dtype and size; its tile is tuned on first use."""

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
        """Prepare a product.

        Args:
            device: Device to run on.
            heads: Names of the files of kernels/ that define how factors and product are accessed.
            kind: Dtype of the elements.
            defined: Preprocessor definitions.
            types: Dtypes of the kernel's scalar arguments; None for buffers.
            size: Rows, columns, length of the sums, batch size.
            pattern: Kernel arguments, with `At` in the place of tensors.
        """
        self._device, self._heads, self._kind = device, heads, kind
        self._defined, self._types, self._size = defined, types, size
        flat = _flat(pattern)
        self._fixed = [None if isinstance(one, At) else one for one in flat]
        self._slots = [(place, one) for place, one in enumerate(flat) if isinstance(one, At)]
        self._chosen: tuple[Any, tuple[int, ...], tuple[int, ...]] | None = None

    def ask(self, tensors: Sequence[OclTensor], last: Sequence[Any] = ()) -> None:
        """Launch the product for these tensors; `last` are trailing arguments."""
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
        """Return the kernel for a tile, its global size and its work-group size."""
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
    """Insert a place for the storage offset after each tensor that needs one."""
    found: list[Any] = []
    for one in pattern:
        found.append(one)
        if isinstance(one, At) and not one.whole:
            found.append(None)
    return found

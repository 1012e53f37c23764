"""Tiled matrix product with fixed shapes: only the tensors differ between launches."""

from __future__ import annotations

from cputrain.opencl.tiles import groups, tiled_kernel
from cputrain.opencl.tuning import tuner_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import torch

    from cputrain.opencl.device import Device
    from cputrain.opencl.tensor import OclTensor
    from cputrain.opencl.tiles import Tile


class TensorSlot:
    """Placeholder of a tensor in an argument pattern: its buffer and its storage offset."""

    def __init__(self, number: int, offset: int = 0, *, omits_offset: bool = False) -> None:
        """Refer to a tensor of the launch.

        Args:
            number: Index among the tensors of the launch.
            offset: Elements to add to the storage offset.
            omits_offset: Whether the tensor begins with its buffer, so that no offset is passed.
        """
        self.number, self.offset, self.omits_offset = number, offset, omits_offset


class Product:
    """A tiled product for a device, kernel, dtype and size; its tile is tuned on first use."""

    def __init__(
        self,
        device: Device,
        heads: tuple[str, ...],
        dtype: torch.dtype,
        definitions: tuple[tuple[str, Any], ...],
        types: tuple[Any, ...],
        size: tuple[int, int, int, int],
        pattern: Sequence[Any],
    ) -> None:
        """Prepare a product.

        Args:
            device: Device to run on.
            heads: Names of the files of kernels/ that define how factors and product are accessed.
            dtype: Dtype of the elements.
            definitions: Preprocessor definitions.
            types: Dtypes of the kernel's scalar arguments; None for buffers.
            size: Rows, columns, length of the sums, batch size.
            pattern: Kernel arguments, with a `TensorSlot` in the place of each tensor.
        """
        self._device, self._heads, self._dtype = device, heads, dtype
        self._definitions, self._types, self._size = definitions, types, size
        flat = _flatten(pattern)
        self._fixed = [None if isinstance(value, TensorSlot) else value for value in flat]
        self._slots = [
            (index, value) for index, value in enumerate(flat) if isinstance(value, TensorSlot)
        ]
        self._config: tuple[Any, tuple[int, ...], tuple[int, ...]] | None = None

    def launch(self, tensors: Sequence[OclTensor], trailing: Sequence[Any] = ()) -> None:
        """Launch the product for these tensors; `trailing` are further arguments."""
        arguments: list[Any] = self._fixed.copy()
        for index, slot in self._slots:
            tensor = tensors[slot.number]
            arguments[index] = tensor.memory.buffer
            if not slot.omits_offset:
                arguments[index + 1] = tensor.storage_offset() + slot.offset
        arguments += trailing
        if self._config is None:
            key = f"{' '.join(self._heads)} {self._dtype} {self._definitions}"
            tile = tuner_of(self._device).tile(
                key,
                *self._size,
                self._dtype,
                lambda tile: self._launch(self._configure(tile), arguments),
            )
            self._config = self._configure(tile)
        self._launch(self._config, arguments)

    def _configure(self, tile: Tile) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        """Return the kernel for a tile, its global size and its work-group size."""
        rows, columns, _, batch = self._size
        across, down = groups(tile, rows, columns)
        kernel = tiled_kernel(
            self._device, self._heads, tile, self._dtype, self._definitions, self._types
        )
        return kernel, (across * tile.items, down, batch), (tile.items, 1, 1)

    def _launch(
        self, config: tuple[Any, tuple[int, ...], tuple[int, ...]], arguments: list[Any]
    ) -> None:
        kernel, items, group = config
        self._device.launch(kernel, items, group, *arguments)


def _flatten(pattern: Sequence[Any]) -> list[Any]:
    """Insert None for the storage offset after each tensor slot that needs an offset."""
    flat: list[Any] = []
    for value in pattern:
        flat.append(value)
        if isinstance(value, TensorSlot) and not value.omits_offset:
            flat.append(None)
    return flat

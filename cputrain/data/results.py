"""A worker's result as it goes through the pipe."""

from __future__ import annotations

import struct
from typing import NamedTuple

from cputrain.ipc.arena import BLOCK_REF, BlockRef

_HEADER = struct.Struct("<ddd?I")


class Result(NamedTuple):
    """What a worker made of one task."""

    making: float
    """Seconds in the dataset."""
    collating: float
    """Seconds in collate_fn."""
    packing: float
    """Seconds to lay it out for the loader."""
    in_block: bool
    """Whether the pickle lies in the last block."""
    lent: list[BlockRef]
    """The blocks that hold it."""
    data: bytes | memoryview
    """The pickle, unless it lies in a block."""

    def encode(self) -> bytes:
        """As bytes."""
        header = _HEADER.pack(
            self.making, self.collating, self.packing, self.in_block, len(self.lent)
        )
        return b"".join((header, *(BLOCK_REF.pack(*one) for one in self.lent), self.data))

    @classmethod
    def decode(cls, message: bytes) -> Result:
        """From bytes."""
        making, collating, packing, in_block, count = _HEADER.unpack_from(message)
        end = _HEADER.size + count * BLOCK_REF.size
        lent = [BlockRef(*one) for one in BLOCK_REF.iter_unpack(message[_HEADER.size : end])]
        return cls(making, collating, packing, in_block, lent, memoryview(message)[end:])

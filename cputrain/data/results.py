"""The message that carries a worker's batch through the pipe to the loader."""

from __future__ import annotations

import struct
from typing import NamedTuple

from cputrain.ipc.arena import BLOCK_REF, BlockRef

_HEADER = struct.Struct("<ddd?I")


class Result(NamedTuple):
    """A worker's result of one task, with its timings."""

    samples_s: float
    """Seconds spent in the dataset."""
    collate_s: float
    """Seconds spent in collate_fn."""
    packing_s: float
    """Seconds spent on pickling and copying to shared memory."""
    is_in_block: bool
    """Whether the pickle is in the last block."""
    lent: list[BlockRef]
    """The blocks of the worker's memory that hold the batch."""
    data: bytes | memoryview
    """The pickle; empty if it is in a block."""

    def encode(self) -> bytes:
        """Return the message as bytes."""
        header = _HEADER.pack(
            self.samples_s, self.collate_s, self.packing_s, self.is_in_block, len(self.lent)
        )
        return b"".join((header, *(BLOCK_REF.pack(*block) for block in self.lent), self.data))

    @classmethod
    def decode(cls, message: bytes) -> Result:
        """Read a message from bytes."""
        samples_s, collate_s, packing_s, is_in_block, num_lent = _HEADER.unpack_from(message)
        end = _HEADER.size + num_lent * BLOCK_REF.size
        lent = [BlockRef(*block) for block in BLOCK_REF.iter_unpack(message[_HEADER.size : end])]
        return cls(samples_s, collate_s, packing_s, is_in_block, lent, memoryview(message)[end:])

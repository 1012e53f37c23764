"""Between the device of the model and that of a part: what goes there, and what comes back.

A copy from or to a GPU waits for all that the GPU was asked for before it, and what it is asked for
next waits for the copy. So copies have an order of their own, and wait for what they need.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch

from cputrain.split.devices import PINS, module_of, stream_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class TransferStream:
    """For one part, there and back.

    Where the model's device has no such order, whoever copies waits for each copy.
    """

    def __init__(self, home: torch.device, device: torch.device) -> None:
        self._home = home
        self._device = device
        self._module = module_of(home)
        self._stream = None if home == device else stream_of(home, f"road to {device}")
        self._now: Any = None
        """What the model's device is asked for otherwise, in its order."""
        self._sent: Any = None

    @contextmanager
    def there(self) -> Iterator[None]:
        """What is sent within is as the model's device has it by now."""
        if self._stream is None:
            yield
            return
        self._now = self._module.current_stream(self._home)
        self._stream.wait_stream(self._now)
        with self._module.stream(self._stream):
            yield
        self._sent = self._stream.record_event()

    def send(self, leaf: Any) -> Any:
        """What is where the model is, where the part is; what is elsewhere is so for a reason.

        One that is differentiated is so there, in a graph of its own.
        """
        return self._moved(leaf, self._home, self._device)

    def wait(self) -> None:
        """Until all of it is there."""
        # (another GPU waits by itself)
        if self._sent is not None and self._device.type == "cpu":
            self._sent.synchronize()

    @contextmanager
    def back(self) -> Iterator[None]:
        """What the model's device is asked for after it has what is brought within."""
        if self._stream is None:
            yield
            return
        self._now = self._module.current_stream(self._home)
        with self._module.stream(self._stream):
            yield
        self._now.wait_stream(self._stream)

    def bring(self, leaf: Any) -> Any:
        """What is where the part is, where the model is; as above."""
        if self._home.type == "cpu" and self._device.type in PINS and _is_of(leaf, self._device):
            # torch puts it into memory that cannot be swapped out then, which takes a quarter
            brought = leaf.detach().to(self._home, non_blocking=True)
            module_of(self._device).current_stream(self._device).synchronize()
            return brought.requires_grad_(leaf.requires_grad)
        return self._moved(leaf, self._device, self._home)

    def _moved(self, leaf: Any, source: torch.device, target: torch.device) -> Any:
        if source == target or not _is_of(leaf, source):
            return leaf
        bare = leaf.detach()
        pieces = _pieces(bare)
        if self._stream is None:
            moved = bare.to(target)
        elif pieces is None:
            with self._module.stream(self._now):
                moved = bare.to(target)
        else:
            moved = bare.to(target, non_blocking=True)
            # memory belongs to the order in which it was asked for, and is in use in the other
            home = source == self._home
            for piece in pieces if home else _pieces(moved) or ():
                piece.record_stream(self._stream if home else self._now)
        return moved.requires_grad_(leaf.requires_grad)


def _is_of(leaf: Any, device: torch.device) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device == device


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """What has its values in memory; None where torch does not say of all of it that it is used."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor] if tensor.layout is torch.strided and not tensor.is_nested else None

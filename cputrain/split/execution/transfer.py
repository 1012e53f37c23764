"""Copies between the model's home device and a replica's device, on a side stream.

A copy from or to a GPU waits for all work queued on its stream before it, and later work waits for
the copy. On a stream of their own, copies wait only for what they need.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch

from cputrain.split.devices import PINNING_DEVICES, module_of, side_stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class TransferStream:
    """Copies to and from the device of one replica.

    Where the home device has no streams, each copy blocks.
    """

    def __init__(self, home: torch.device, device: torch.device) -> None:
        self._home = home
        self._device = device
        self._module = module_of(home)
        self._stream = None if home == device else side_stream(home, f"road to {device}")
        self._compute_stream: Any = None
        """The home device's compute stream."""
        self._sent_event: Any = None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Make copies to the replica's device, after the work queued on the home device so far."""
        if self._stream is None:
            yield
            return
        self._compute_stream = self._module.current_stream(self._home)
        self._stream.wait_stream(self._compute_stream)
        with self._module.stream(self._stream):
            yield
        self._sent_event = self._stream.record_event()

    def send(self, leaf: Any) -> Any:
        """Copy home-device tensors to the replica's device; return other values unchanged.

        A tensor that requires a gradient gives a leaf that requires one, in a separate graph.
        """
        return self._copy(leaf, self._home, self._device)

    def wait(self) -> None:
        """Wait until everything that was sent has arrived."""
        # (another GPU's stream waits by itself)
        if self._sent_event is not None and self._device.type == "cpu":
            self._sent_event.synchronize()

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Make copies to the home device, which its later work waits for."""
        if self._stream is None:
            yield
            return
        self._compute_stream = self._module.current_stream(self._home)
        with self._module.stream(self._stream):
            yield
        self._compute_stream.wait_stream(self._stream)

    def receive(self, leaf: Any) -> Any:
        """Copy the replica's tensors to the home device; return other values unchanged."""
        if (
            self._home.type == "cpu"
            and self._device.type in PINNING_DEVICES
            and _is_on(leaf, self._device)
        ):
            # torch copies to pinned memory then, which takes a quarter of the time
            received = leaf.detach().to(self._home, non_blocking=True)
            module_of(self._device).current_stream(self._device).synchronize()
            return received.requires_grad_(leaf.requires_grad)
        return self._copy(leaf, self._device, self._home)

    def _copy(self, leaf: Any, source: torch.device, target: torch.device) -> Any:
        if source == target or not _is_on(leaf, source):
            return leaf
        detached = leaf.detach()
        value_tensors = _value_tensors(detached)
        if self._stream is None:
            copied = detached.to(target)
        elif value_tensors is None:
            with self._module.stream(self._compute_stream):
                copied = detached.to(target)
        else:
            copied = detached.to(target, non_blocking=True)
            # memory belongs to the stream that allocated it, and is used on the other one
            is_from_home = source == self._home
            for tensor in value_tensors if is_from_home else _value_tensors(copied) or ():
                tensor.record_stream(self._stream if is_from_home else self._compute_stream)
        return copied.requires_grad_(leaf.requires_grad)


def _is_on(leaf: Any, device: torch.device) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device == device


def _value_tensors(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """Return the tensors that hold the values; None where record_stream does not cover them."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor] if tensor.layout is torch.strided and not tensor.is_nested else None

"""Tensors of one device on another one: sent, and gradients fetched, in one piece of each type.

A model has hundreds of small parameters. So all of a type lie side by side in one piece of memory
on the other device, and what is sent is put side by side first.
"""

from __future__ import annotations

import threading
from weakref import ref

import torch

from cputrain.split.devices import PINS, has_streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Tensor = torch.Tensor


class FlatParams:
    """What stands for some tensors on another device."""

    def __init__(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        self._tensors = _each_once(tensors)
        self._known = _looks(self._tensors)
        self._lock = threading.Lock()
        self._calls: list[ref[object]] = []
        """Those they were sent for that are there still: a backward of theirs may come."""
        self.values: dict[int, Tensor] = {}
        """By the id of the tensor that each stands for."""
        self._sent: set[int] = set()
        """Pieces that are there."""
        self._pieces: list[tuple[list[Tensor], Tensor, list[Tensor]]] = []
        """Tensors, their piece of memory there, and here what was sent last and what is next."""
        for pairs in _by_type(enumerate(self._tensors)):
            alike = [one for _, one in pairs]
            count = sum(one.numel() for one in alike)
            kind, home = alike[0].dtype, alike[0].device
            here = [_piece(count, kind, home, device) for _ in range(2)]
            there = _piece(count, kind, device, home)
            self._pieces.append((alike, there, here))
            ids = (id(one) for one in alike)
            self.values.update(zip(ids, _cut(there, alike), strict=True))

    def is_of(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these are what it stands for, in the same form still."""
        return _looks(_each_once(tensors)) == self._known

    def update(self, call: object = None) -> None:
        """Send them as they are now; for the same call, once.

        Whoever else comes for that call waits until they are there; from a GPU, they are on their
        way. What is as it was is not written again where the graph of an earlier call may need it.
        """
        with self._lock, torch.no_grad():
            self._calls = [one for one in self._calls if one() is not None]
            if call is not None and any(one() is call for one in self._calls):
                return
            compares = call is None or self._calls
            for number, (tensors, there, buffers) in enumerate(self._pieces):
                sent, spare = buffers
                torch.cat([_flat(one.detach()) for one in tensors], out=spare)
                if compares and number in self._sent and torch.equal(spare, sent):
                    continue
                self._sent.discard(number)  # whatever comes in between
                # (what goes to the CPU by a road is waited for there)
                goes = call is not None and has_streams(spare.device)
                there.copy_(spare, non_blocking=goes or there.device.type != "cpu")
                buffers.reverse()
                self._sent.add(number)
            if call is not None:
                self._calls.append(ref(call))


def _each_once(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(one): one for one in tensors}.values())


def _looks(tensors: Sequence[Tensor]) -> list[tuple[object, ...]]:
    return [(id(one), one.device, one.dtype, one.shape, one.stride()) for one in tensors]


class Packed:
    """Tensors side by side, one piece for each type, where they were made: to be fetched."""

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        home: torch.device,
        memory: dict[torch.dtype, Tensor] | None = None,
    ) -> None:
        """They are needed at `home`. Of `memory`, what fits is used, and given back afterwards."""
        self._memory = {} if memory is None else memory
        self._count = len(tensors)
        self._apart = {
            number: one
            for number, one in enumerate(tensors)
            if one is not None and one.layout is not torch.strided
        }
        self._pieces: list[tuple[list[int], list[Tensor], Tensor]] = []
        """Places, what was there, and all of it in one."""
        dense = [
            (number, one)
            for number, one in enumerate(tensors)
            if one is not None and number not in self._apart
        ]
        with torch.no_grad():
            for pairs in _by_type(dense):
                numbers, alike = [number for number, _ in pairs], [one for _, one in pairs]
                count, kind = sum(one.numel() for one in alike), alike[0].dtype
                flat = self._memory.pop(kind, None)  # nobody else packs there meanwhile
                if flat is None or flat.numel() != count or flat.device != alike[0].device:
                    flat = _piece(count, kind, alike[0].device, home)
                torch.cat([_flat(one) for one in alike], out=flat)
                self._pieces.append((numbers, alike, flat))

    def fetched(self, bring: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """The same, brought by this."""
        found: list[Tensor | None] = [None] * self._count
        for numbers, alike, flat in self._pieces:
            for number, part in zip(numbers, _cut(bring(flat), alike), strict=True):
                found[number] = part
            self._memory[flat.dtype] = flat  # written to again by who has waited for this
        for number, one in self._apart.items():
            found[number] = bring(one)
        return found


def _by_type(pairs: Iterable[tuple[int, Tensor]]) -> list[list[tuple[int, Tensor]]]:
    """Places and tensors, those of a type together."""
    found: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
    for number, one in pairs:
        found.setdefault(one.dtype, []).append((number, one))
    return list(found.values())


def _cut(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts, at = [], 0
    for one in tensors:
        parts.append(_formed(flat.narrow(0, at, one.numel()), one))
        at += one.numel()
    return parts


def _flat(tensor: Tensor) -> Tensor:
    """In one dimension, in the order in which it lies."""
    if _is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def _formed(flat: Tensor, like: Tensor) -> Tensor:
    """The other way."""
    if _is_dense(like):
        return flat.as_strided(like.size(), like.stride())
    return flat.view(like.size())


def _is_dense(tensor: Tensor) -> bool:
    """Whether it fills its memory, in whatever order."""
    expected = 1
    for size, stride in sorted(
        zip(tensor.shape, tensor.stride(), strict=True), key=lambda one: one[1]
    ):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return tensor.numel() > 0


def _piece(count: int, kind: torch.dtype, on: torch.device, other: torch.device) -> Tensor:
    """Memory on one device for what goes to the other or comes from there."""
    pins = on.type == "cpu" and other.type in PINS
    return torch.empty(count, dtype=kind, device=on, pin_memory=pins)

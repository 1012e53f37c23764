"""Random numbers, drawn where they are wanted.

A generator that a script gives is one of the CPU: what is drawn from it is drawn there.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.generator import generator_of
from cputrain.opencl.ops.factories import like
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import is_dense, is_partial_alias
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import NAMES, SCALARS, are_supported, can_represent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

WHOLE = {torch.float32: 1 << 24, torch.float64: 1 << 53}
"""Up to where a floating type has every integer."""


@kernel(aten.uniform_.default)
def uniform_(self: OclTensor, from_: float = 0, to: float = 1, *, generator: Any = None) -> Any:
    """Fill with samples of a uniform distribution."""
    if not self.is_floating_point():
        return NotImplemented
    if from_ > to or not all(map(isfinite, (from_, to, to - from_))):
        return NotImplemented
    if not all(can_represent(self.dtype, one) for one in (from_, to, to - from_)):
        return NotImplemented
    number = SCALARS.get(self.dtype, float)
    return _filled("uniform", self, generator, self.dtype, [number(from_), number(to)])


@kernel(aten.normal_.default)
def normal_(self: OclTensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    """Fill with samples of a normal distribution."""
    if std < 0:
        return NotImplemented
    number = SCALARS.get(self.dtype, float)
    return _filled("normal", self, generator, self.dtype, [number(mean), number(std)])


@kernel(aten.bernoulli_.float)
def bernoulli_(self: OclTensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """Fill with ones with probability `p`, else zeros."""
    if not 0 <= p <= 1:
        return NotImplemented
    return _filled("bernoulli", self, generator, torch.float32, [np.float32(p)])


@kernel(aten.bernoulli_.Tensor)
def bernoullis_(self: OclTensor, p: Any, *, generator: Any = None) -> Any:
    """Fill with Bernoulli samples, with a probability per element."""
    if not isinstance(p, OclTensor) or not p.is_floating_point() or p.size() != self.size():
        return NotImplemented
    if p.stride() != self.stride() or is_partial_alias(self, p):
        return NotImplemented
    return _filled("bernoullis", self, generator, p.dtype, [p.memory.buffer, p.storage_offset()])


@kernel(aten.bernoulli.default)
def bernoulli(self: OclTensor, *, generator: Any = None) -> Any:
    """Return Bernoulli samples in a new tensor."""
    if not self.is_floating_point() or not is_dense(self.size(), self.stride()):
        return NotImplemented
    return bernoullis_(like(self, None, None), self, generator=generator)


@kernel(getattr(aten.random_, "from"))
def random_(self: OclTensor, from_: int, to: int | None, *, generator: Any = None) -> Any:
    """Fill with integers uniform in [from_, to)."""
    if to is None or from_ >= to or not _has_all(self.dtype, from_, to - 1):
        return NotImplemented
    return _filled("integers", self, generator, torch.float32, [from_, to - from_])


def _has_all(kind: torch.dtype, least: int, most: int) -> bool:
    """Return whether a dtype represents every integer from `least` to `most`."""
    if kind not in NAMES:
        return False
    if kind is torch.bool:
        return least >= 0 and most <= 1
    if kind in WHOLE:
        return -WHOLE[kind] <= least and most <= WHOLE[kind]
    bounds = torch.iinfo(kind)
    return bounds.min <= least and most <= bounds.max


@kernel(aten.random_.to)
def random_to(self: OclTensor, to: int, *, generator: Any = None) -> Any:
    """Fill with integers uniform in [0, to)."""
    return random_(self, 0, to, generator=generator)


@kernel(aten.native_dropout.default)
def dropout(input: OclTensor, p: float, train: bool | None) -> Any:  # noqa: A002  (torch's name)
    """Return the input after dropout, and the mask of elements kept."""
    if train is False or not 0 <= p < 1 or not input.is_floating_point():
        return NotImplemented
    device, kind = input.memory.device, input.dtype
    if not are_supported(device, kind):
        return NotImplemented
    one = input if is_dense(input.size(), input.stride()) else as_contiguous(input)
    out = empty(device.index, one.size(), one.stride(), kind)
    mask = empty(device.index, one.size(), one.stride(), torch.bool)
    number = SCALARS[kind]
    _launch(
        "dropout", device, kind, kind, one.numel(),
        [out.memory.buffer, 0, mask.memory.buffer, one.memory.buffer, one.storage_offset(),
         number(1 - p), number(1 / (1 - p))],
    )  # fmt: skip
    return out, mask


@kernel(aten.native_dropout_backward.default)
def dropout_backward(grad_output: OclTensor, mask: OclTensor, scale: float) -> Any:
    """Return the gradient of dropout with respect to its input."""
    return grad_output * mask * scale


def _filled(
    name: str, out: OclTensor, generator: Any, computes: torch.dtype, arguments: list[Any]
) -> Any:
    device = out.memory.device
    if (
        generator is not None
        or not are_supported(device, out.dtype, computes)
        or not (computes.is_floating_point and is_dense(out.size(), out.stride()))
    ):
        return NotImplemented
    _launch(
        name,
        device,
        computes,
        out.dtype,
        out.numel(),
        [out.memory.buffer, out.storage_offset(), *arguments],
    )
    return out


def _launch(
    name: str, device: Device, computes: torch.dtype, written: torch.dtype, count: int,
    arguments: list[Any],
) -> None:  # fmt: skip
    if not count:
        return
    seed, first = generator_of(device.index).reserve(count)
    ready = _kernel_for(device, name, computes, written)
    device.launch(ready, *launch_size(count), count, seed, first, *arguments)


@lru_cache
def _kernel_for(device: Device, name: str, computes: torch.dtype, written: torch.dtype) -> Any:
    number = SCALARS[computes]
    last = {
        "uniform": (None, np.int64, number, number),
        "normal": (None, np.int64, number, number),
        "bernoulli": (None, np.int64, number),
        "bernoullis": (None, np.int64, None, np.int64),
        "integers": (None, np.int64, np.int64, np.uint64),
        "dropout": (None, np.int64, None, None, np.int64, number, number),
    }[name]
    defined = {
        "T": NAMES[computes], "OUT": NAMES[written], "IS_DOUBLE": int(computes is torch.float64),
        "MISSING": "NAN" if written.is_floating_point else "0",
    }  # fmt: skip
    source = program_source("random", defined)
    return compile_kernel(device, source, name, (np.int64, np.uint64, np.uint64, *last))

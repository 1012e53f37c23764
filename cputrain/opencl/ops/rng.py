"""Random numbers and dropout, by the device's own generator.

An explicit generator argument is a CPU generator: such operators run on the CPU.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.generator import generator_of
from cputrain.opencl.ops.factories import empty_like, like
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import is_dense, is_partial_alias
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import (
    EXACT_INTEGERS,
    SCALARS,
    STORED,
    access_definitions,
    are_supported,
    can_represent,
    can_represent_range,
    element_definitions,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten


@kernel(aten.uniform_.default)
def uniform_(self: OclTensor, from_: float = 0, to: float = 1, *, generator: Any = None) -> Any:
    """Fill with samples of a uniform distribution."""
    if not self.is_floating_point():
        return NotImplemented
    if from_ > to or not all(map(isfinite, (from_, to, to - from_))):
        return NotImplemented
    if not all(can_represent(self.dtype, value) for value in (from_, to, to - from_)):
        return NotImplemented
    scalar_type = SCALARS.get(self.dtype, float)
    return _fill_random(
        "uniform", self, generator, self.dtype, [scalar_type(from_), scalar_type(to)]
    )


@kernel(aten.normal_.default)
def normal_(self: OclTensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> Any:
    """Fill with samples of a normal distribution."""
    if std < 0:
        return NotImplemented
    scalar_type = SCALARS.get(self.dtype, float)
    return _fill_random(
        "normal", self, generator, self.dtype, [scalar_type(mean), scalar_type(std)]
    )


@kernel(aten.rand_like.default)
def rand_like(self: OclTensor, **options: Any) -> Any:
    """Return samples of a uniform distribution from 0 to 1, in a tensor like this one."""
    return uniform_(out) if (out := empty_like(self, **options)) is not NotImplemented else out


@kernel(aten.randn_like.default)
def randn_like(self: OclTensor, **options: Any) -> Any:
    """Return samples of the standard normal distribution, in a tensor like this one."""
    return normal_(out) if (out := empty_like(self, **options)) is not NotImplemented else out


@kernel(aten.bernoulli_.float)
def bernoulli_(self: OclTensor, p: float = 0.5, *, generator: Any = None) -> Any:
    """Fill with ones with probability `p`, else zeros."""
    if not 0 <= p <= 1:
        return NotImplemented
    return _fill_random("bernoulli", self, generator, torch.float32, [np.float32(p)])


@kernel(aten.bernoulli_.Tensor)
def bernoulli_tensor_(self: OclTensor, p: Any, *, generator: Any = None) -> Any:
    """Fill with Bernoulli samples, with a probability per element."""
    if not isinstance(p, OclTensor) or not p.is_floating_point() or p.size() != self.size():
        return NotImplemented
    if p.stride() != self.stride() or is_partial_alias(self, p):
        return NotImplemented
    return _fill_random(
        "bernoulli_tensor", self, generator, p.dtype, [p.memory.buffer, p.storage_offset()]
    )


@kernel(aten.bernoulli.default)
def bernoulli(self: OclTensor, *, generator: Any = None) -> Any:
    """Return Bernoulli samples in a new tensor."""
    if not self.is_floating_point() or not is_dense(self.size(), self.stride()):
        return NotImplemented
    return bernoulli_tensor_(like(self, None, None), self, generator=generator)


@kernel(getattr(aten.random_, "from"))
def random_(self: OclTensor, from_: int, to: int | None, *, generator: Any = None) -> Any:
    """Fill with integers uniform in [from_, to)."""
    if to is None or from_ >= to or not can_represent_range(self.dtype, from_, to - 1):
        return NotImplemented
    return _fill_random("integers", self, generator, torch.float32, [from_, to - from_])


@kernel(aten.random_.to)
def random_to(self: OclTensor, to: int, *, generator: Any = None) -> Any:
    """Fill with integers uniform in [0, to)."""
    return random_(self, 0, to, generator=generator)


@kernel(aten.native_dropout.default)
def dropout(input: OclTensor, p: float, train: bool | None) -> Any:  # noqa: A002  (torch's name)
    """Return the input after dropout, and the mask of kept elements."""
    if train is False or not 0 <= p < 1 or not input.is_floating_point():
        return NotImplemented
    device, dtype = input.memory.device, input.dtype
    if not are_supported(device, dtype):
        return NotImplemented
    dense_input = input if is_dense(input.size(), input.stride()) else as_contiguous(input)
    out = empty(device.index, dense_input.size(), dense_input.stride(), dtype)
    mask = empty(device.index, dense_input.size(), dense_input.stride(), torch.bool)
    scalar_type = SCALARS[dtype]
    _launch(
        "dropout", device, dtype, dtype, dense_input.numel(),
        [out.memory.buffer, 0, mask.memory.buffer,
         dense_input.memory.buffer, dense_input.storage_offset(),
         scalar_type(1 - p), scalar_type(1 / (1 - p))],
    )  # fmt: skip
    return out, mask


@kernel(aten.native_dropout_backward.default)
def dropout_backward(grad_output: OclTensor, mask: OclTensor, scale: float) -> Any:
    """Return the gradient of dropout with respect to its input."""
    return grad_output * mask * scale


def _fill_random(
    name: str, out: OclTensor, generator: Any, computed_dtype: torch.dtype, arguments: list[Any]
) -> Any:
    device = out.memory.device
    if (
        generator is not None
        or not are_supported(device, out.dtype, computed_dtype)
        or not (computed_dtype.is_floating_point and is_dense(out.size(), out.stride()))
    ):
        return NotImplemented
    _launch(
        name,
        device,
        computed_dtype,
        out.dtype,
        out.numel(),
        [out.memory.buffer, out.storage_offset(), *arguments],
    )
    return out


def _launch(
    name: str, device: Device, computed_dtype: torch.dtype, out_dtype: torch.dtype,
    num_elements: int, arguments: list[Any],
) -> None:  # fmt: skip
    if not num_elements:
        return
    seed, offset = generator_of(device.index).reserve(num_elements)
    ocl_kernel = _kernel_for(device, name, computed_dtype, out_dtype)
    device.launch(ocl_kernel, *launch_size(num_elements), num_elements, seed, offset, *arguments)


@lru_cache
def _kernel_for(
    device: Device, name: str, computed_dtype: torch.dtype, out_dtype: torch.dtype
) -> Any:
    scalar_type = SCALARS[computed_dtype]
    extra_types = {
        "uniform": (None, np.int64, scalar_type, scalar_type),
        "normal": (None, np.int64, scalar_type, scalar_type),
        "bernoulli": (None, np.int64, scalar_type),
        "bernoulli_tensor": (None, np.int64, None, np.int64),
        "integers": (None, np.int64, np.int64, np.uint64),
        "dropout": (None, np.int64, None, None, np.int64, scalar_type, scalar_type),
    }[name]
    definitions = {
        **element_definitions(computed_dtype), **access_definitions(out_dtype, "OUT"),
        "DIGITS": EXACT_INTEGERS[computed_dtype].bit_length() - 1,
        "ROUNDED(x)": f"rounded_to_{STORED[computed_dtype]}(x)",
        "IS_DOUBLE": int(computed_dtype is torch.float64),
        "MISSING": "NAN" if out_dtype.is_floating_point else "0",
    }  # fmt: skip
    source = program_source("random", definitions)
    return compile_kernel(device, source, name, (np.int64, np.uint64, np.uint64, *extra_types))

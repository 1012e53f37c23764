"""Samples as bytes, in a format of our own: what is read from a file runs no code.

Each value is a letter, what its type needs to know, and its elements. Arrays and tensors begin at
multiples of 16 bytes, and are read in place: a sample that was read lies in the buffer it was read
into, which is nobody else's.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = 1
"""Grows when bytes that were written before would be read as something else."""

_ALIGNMENT = 16

_MAX_DEPTH = 32

_LARGE = 4096
"""Bytes that are a part of their own."""

_NUMBER = struct.Struct("<q")
_COMPLEX = struct.Struct("<dd")

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32,
        torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip

_IMAGE_CLASSES = ("Image", "Mask", "Video")
"""Subclasses of tensors in torchvision.tv_tensors that hold nothing but the tensor."""


class NotPackableError(Exception):
    """A sample holds something of which no exact copy can be made; the text says what."""


def packed(sample: Any) -> bytes:
    """Return a sample as bytes; equal samples give equal bytes."""
    return b"".join(packed_parts(sample))


def packed_parts(sample: Any) -> list[bytes]:
    """Return the same as few parts, so that large ones need not be copied."""
    packer = _Packer()
    packer.add(sample, 0)
    packer.close_part()
    return packer.parts


def unpacked(buffer: np.ndarray[Any, Any]) -> Any:
    """Return the sample that was packed, in the memory of the buffer.

    Args:
        buffer: bytes, at an address that is a multiple of 16; not to be used by anybody else.
    """
    return _Unpacker(buffer).value()


class _Packer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._small: list[bytes] = []
        self._size = 0
        self._held: set[int] = set()
        """Of arrays and tensors: where their memory begins."""

    def add(self, value: Any, depth: int) -> None:
        kind = type(value)
        if depth > _MAX_DEPTH:
            raise NotPackableError(f"values nested deeper than {_MAX_DEPTH}")
        if value is None or kind is bool:
            self._put(b"N" if value is None else b"T" if value else b"F")
        elif kind is int:
            self._put_bytes(b"I", str(value).encode("ascii"))
        elif kind is float:
            self._put(b"D" + struct.pack("<d", value))
        elif kind is complex:
            self._put(b"C" + _COMPLEX.pack(value.real, value.imag))
        elif kind is str:
            self._put_bytes(b"S", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            self._put_bytes(b"B", value)
        elif kind is list or kind is tuple:
            self._put((b"L" if kind is list else b"U") + _NUMBER.pack(len(value)))
            for one in value:
                self.add(one, depth + 1)
        elif kind is dict:
            self._put(b"M" + _NUMBER.pack(len(value)))
            for key, one in value.items():
                self.add(key, depth + 1)
                self.add(one, depth + 1)
        elif kind is np.ndarray:
            self._put_array(value)
        elif isinstance(value, np.generic) and kind.__module__ == "numpy":
            _require_plain(value.dtype)
            self._put_text(b"E", value.dtype.str)
            self._put_data(value.tobytes())
        elif isinstance(value, torch.Tensor):
            self._put_tensor(value)
        else:
            raise NotPackableError(f"values of type {kind.__module__}.{kind.__qualname__}")

    def _put_array(self, array: np.ndarray[Any, Any]) -> None:
        _require_plain(array.dtype)
        is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        if not (array.flags.c_contiguous or is_fortran) or not array.flags.writeable:
            raise NotPackableError("arrays that are views with gaps, or cannot be written to")
        self._require_apart(array.ctypes.data, array.nbytes)
        self._put_text(b"A", array.dtype.str)
        self._put_numbers(int(is_fortran), *array.shape)
        self._put_data(array.tobytes("A"))

    def _put_tensor(self, tensor: torch.Tensor) -> None:
        kind = type(tensor)
        is_image = kind.__module__.startswith("torchvision.tv_tensors.") and (
            kind.__qualname__ in _IMAGE_CLASSES
        )
        if kind is not torch.Tensor and not is_image:
            raise NotPackableError(f"values of type {kind.__module__}.{kind.__qualname__}")
        plain = tensor.as_subclass(torch.Tensor) if is_image else tensor
        dtype = str(plain.dtype).removeprefix("torch.")
        if (
            plain.device.type != "cpu"
            or plain.layout is not torch.strided
            or plain.requires_grad
            or plain.is_quantized
            or plain.is_conj()
            or plain.is_neg()
            or dtype not in _DTYPES
            or plain.is_shared()
        ):
            raise NotPackableError(
                "tensors that are shared, sparse, quantized, on a device, or need gradients"
            )
        shape, strides = tuple(plain.shape), tuple(plain.stride())
        order = sorted(range(plain.dim()), key=lambda dim: (-strides[dim], -shape[dim]))
        dense = plain.permute(order)
        if not dense.is_contiguous():
            raise NotPackableError("tensors that are views with gaps")
        self._require_apart(plain.data_ptr(), plain.numel() * plain.element_size())
        self._put_text(b"X", kind.__qualname__ if is_image else "")
        self._put_text(b"", dtype)
        self._put_numbers(*shape)
        self._put_numbers(*strides)
        self._put_data(dense.reshape(-1).view(torch.uint8).numpy().tobytes())

    def _require_apart(self, address: int, size: int) -> None:
        if size and address in self._held:
            raise NotPackableError("one array or tensor in two places")
        self._held.add(address)

    def _put(self, data: bytes) -> None:
        self._small.append(data)
        self._size += len(data)

    def close_part(self) -> None:
        """What is put next is another part."""
        if self._small:
            self.parts.append(b"".join(self._small))
            self._small.clear()

    def _put_bytes(self, letter: bytes, data: bytes) -> None:
        self._put(letter + _NUMBER.pack(len(data)) + data)

    def _put_text(self, letter: bytes, text: str) -> None:
        self._put_bytes(letter, text.encode("ascii"))

    def _put_numbers(self, *numbers: int) -> None:
        self._put(_NUMBER.pack(len(numbers)) + struct.pack(f"<{len(numbers)}q", *numbers))

    def _put_data(self, data: bytes) -> None:
        self._put(_NUMBER.pack(len(data)))
        self._put(bytes(-self._size % _ALIGNMENT))
        if len(data) < _LARGE:
            self._put(data)
            return
        self.close_part()
        self.parts.append(data)
        self._size += len(data)


class _Unpacker:
    def __init__(self, buffer: np.ndarray[Any, Any]) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer.data)
        self._place = 0
        self._readers: dict[int, Callable[[], Any]] = {
            ord("N"): lambda: None,
            ord("T"): lambda: True,
            ord("F"): lambda: False,
            ord("I"): lambda: int(self._bytes()),
            ord("D"): self._float,
            ord("C"): self._complex,
            ord("S"): lambda: self._bytes().decode("utf-8", "surrogatepass"),
            ord("B"): self._bytes,
            ord("L"): lambda: [self.value() for _ in range(self._number())],
            ord("U"): lambda: tuple([self.value() for _ in range(self._number())]),
            ord("M"): lambda: {self.value(): self.value() for _ in range(self._number())},
            ord("A"): self._array,
            ord("E"): self._scalar,
            ord("X"): self._tensor,
        }

    def value(self) -> Any:
        letter = self._view[self._place]
        self._place += 1
        return self._readers[letter]()

    def _number(self) -> int:
        (number,) = _NUMBER.unpack_from(self._view, self._place)
        self._place += 8
        return int(number)

    def _bytes(self) -> bytes:
        size = self._number()
        self._place += size
        return self._view[self._place - size : self._place].tobytes()

    def _text(self) -> str:
        return self._bytes().decode("ascii")

    def _numbers(self) -> tuple[int, ...]:
        count = self._number()
        self._place += 8 * count
        return struct.unpack_from(f"<{count}q", self._view, self._place - 8 * count)

    def _float(self) -> float:
        (number,) = struct.unpack_from("<d", self._view, self._place)
        self._place += 8
        return float(number)

    def _complex(self) -> complex:
        self._place += 16
        return complex(*_COMPLEX.unpack_from(self._view, self._place - 16))

    def _data(self) -> np.ndarray[Any, Any]:
        size = self._number()
        begin = self._place + -self._place % _ALIGNMENT
        self._place = begin + size
        return self._buffer[begin : begin + size]

    def _array(self) -> np.ndarray[Any, Any]:
        dtype = np.dtype(self._text())
        is_fortran, *shape = self._numbers()
        data = self._data().view(dtype)
        return data.reshape(shape, order="F" if is_fortran else "C")

    def _scalar(self) -> Any:
        dtype = np.dtype(self._text())
        return self._data().view(dtype)[0]

    def _tensor(self) -> torch.Tensor:
        name = self._text()
        dtype = _DTYPES[self._text()]
        shape, strides = self._numbers(), self._numbers()
        data = self._data()
        if data.size:
            tensor = torch.from_numpy(data).view(dtype).as_strided(shape, strides)
        else:
            tensor = torch.empty_strided(shape, strides, dtype=dtype)
        if not name:
            return tensor
        from torchvision import tv_tensors

        image: torch.Tensor = getattr(tv_tensors, name)(tensor)
        return image


def _require_plain(dtype: np.dtype[Any]) -> None:
    if dtype.hasobject or dtype.names or dtype.subdtype or dtype.kind not in "?biufcSUmM":
        raise NotPackableError(f"arrays of {dtype}")
    if dtype.byteorder == (">" if sys.byteorder == "little" else "<"):
        raise NotPackableError("arrays in the byte order of other machines")

"""Encoding of samples as bytes for the cache; unlike with pickle, decoding runs no code.

Each value is encoded as a letter for its type, its sizes, and its elements. The data of arrays and
tensors is aligned to 16 bytes. Decoding does not copy it: arrays and tensors of the decoded sample
use the memory of the buffer.
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
"""Version of the format; increase it when existing bytes would be decoded differently."""

_ALIGNMENT = 16

_MAX_DEPTH = 32

_LARGE = 4096
"""Size in bytes from which an array's data is a separate part, which is not copied."""

_INTEGER = struct.Struct("<q")
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


class NotEncodableError(Exception):
    """A sample holds a value that the format cannot represent exactly; the text names it."""


def encode_sample(sample: Any) -> bytes:
    """Return a sample as bytes; equal samples give equal bytes."""
    return b"".join(encode_parts(sample))


def encode_parts(sample: Any) -> list[bytes]:
    """Return the bytes of `encode_sample` in several parts, which saves a copy of large arrays."""
    encoder = _SampleEncoder()
    encoder.add(sample, 0)
    encoder.finish_part()
    return encoder.parts


def decode_sample(buffer: np.ndarray[Any, Any]) -> Any:
    """Return the sample encoded in a buffer; its arrays and tensors use the buffer's memory.

    Args:
        buffer: Bytes that begin at a multiple of 16, and that the caller does not use afterwards.
    """
    return _SampleDecoder(buffer).value()


class _SampleEncoder:
    """Encodes values into `parts`."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._small: list[bytes] = []
        self._size = 0
        self._addresses: set[int] = set()
        """The addresses of the arrays and tensors encoded so far."""

    def add(self, value: Any, depth: int) -> None:
        """Encode a value that is nested in `depth` containers."""
        kind = type(value)
        if depth > _MAX_DEPTH:
            raise NotEncodableError(f"values nested deeper than {_MAX_DEPTH}")
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
            self._put((b"L" if kind is list else b"U") + _INTEGER.pack(len(value)))
            for element in value:
                self.add(element, depth + 1)
        elif kind is dict:
            self._put(b"M" + _INTEGER.pack(len(value)))
            for key, element in value.items():
                self.add(key, depth + 1)
                self.add(element, depth + 1)
        elif kind is np.ndarray:
            self._put_array(value)
        elif isinstance(value, np.generic) and kind.__module__ == "numpy":
            _require_supported(value.dtype)
            self._put_text(b"E", value.dtype.str)
            self._put_data(value.tobytes())
        elif isinstance(value, torch.Tensor):
            self._put_tensor(value)
        else:
            raise NotEncodableError(f"values of type {kind.__module__}.{kind.__qualname__}")

    def _put_array(self, array: np.ndarray[Any, Any]) -> None:
        _require_supported(array.dtype)
        is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        if not (array.flags.c_contiguous or is_fortran) or not array.flags.writeable:
            raise NotEncodableError("arrays that are read-only, or not dense in memory")
        self._require_first_use(array.ctypes.data, array.nbytes)
        self._put_text(b"A", array.dtype.str)
        self._put_integers(int(is_fortran), *array.shape)
        self._put_data(array.tobytes("A"))

    def _put_tensor(self, tensor: torch.Tensor) -> None:
        kind = type(tensor)
        is_image = kind.__module__.startswith("torchvision.tv_tensors.") and (
            kind.__qualname__ in _IMAGE_CLASSES
        )
        if kind is not torch.Tensor and not is_image:
            raise NotEncodableError(f"values of type {kind.__module__}.{kind.__qualname__}")
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
            raise NotEncodableError(
                "tensors that are shared, sparse, quantized, on a device, or need gradients"
            )
        shape, strides = tuple(plain.shape), tuple(plain.stride())
        order = sorted(range(plain.dim()), key=lambda dim: (-strides[dim], -shape[dim]))
        dense = plain.permute(order)
        if not dense.is_contiguous():
            raise NotEncodableError("tensors that are not dense in memory")
        self._require_first_use(plain.data_ptr(), plain.numel() * plain.element_size())
        self._put_text(b"X", kind.__qualname__ if is_image else "")
        self._put_text(b"", dtype)
        self._put_integers(*shape)
        self._put_integers(*strides)
        self._put_data(dense.reshape(-1).view(torch.uint8).numpy().tobytes())

    def _require_first_use(self, address: int, size: int) -> None:
        """Raise NotEncodableError if memory at this address has been encoded before."""
        if size and address in self._addresses:
            raise NotEncodableError("the same array or tensor twice")
        self._addresses.add(address)

    def _put(self, data: bytes) -> None:
        self._small.append(data)
        self._size += len(data)

    def finish_part(self) -> None:
        """Append the small values since the last part as a part."""
        if self._small:
            self.parts.append(b"".join(self._small))
            self._small.clear()

    def _put_bytes(self, letter: bytes, data: bytes) -> None:
        self._put(letter + _INTEGER.pack(len(data)) + data)

    def _put_text(self, letter: bytes, text: str) -> None:
        self._put_bytes(letter, text.encode("ascii"))

    def _put_integers(self, *numbers: int) -> None:
        self._put(_INTEGER.pack(len(numbers)) + struct.pack(f"<{len(numbers)}q", *numbers))

    def _put_data(self, data: bytes) -> None:
        """Append the size and the aligned bytes of an array."""
        self._put(_INTEGER.pack(len(data)))
        self._put(bytes(-self._size % _ALIGNMENT))
        if len(data) < _LARGE:
            self._put(data)
            return
        self.finish_part()
        self.parts.append(data)
        self._size += len(data)


class _SampleDecoder:
    """Decodes a buffer from its beginning."""

    def __init__(self, buffer: np.ndarray[Any, Any]) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer.data)
        self._offset = 0
        self._readers: dict[int, Callable[[], Any]] = {
            ord("N"): lambda: None,
            ord("T"): lambda: True,
            ord("F"): lambda: False,
            ord("I"): lambda: int(self._bytes()),
            ord("D"): self._float,
            ord("C"): self._complex,
            ord("S"): lambda: self._bytes().decode("utf-8", "surrogatepass"),
            ord("B"): self._bytes,
            ord("L"): lambda: [self.value() for _ in range(self._integer())],
            ord("U"): lambda: tuple([self.value() for _ in range(self._integer())]),
            ord("M"): lambda: {self.value(): self.value() for _ in range(self._integer())},
            ord("A"): self._array,
            ord("E"): self._scalar,
            ord("X"): self._tensor,
        }

    def value(self) -> Any:
        """Decode the next value."""
        letter = self._view[self._offset]
        self._offset += 1
        return self._readers[letter]()

    def _integer(self) -> int:
        (value,) = _INTEGER.unpack_from(self._view, self._offset)
        self._offset += 8
        return int(value)

    def _bytes(self) -> bytes:
        size = self._integer()
        self._offset += size
        return self._view[self._offset - size : self._offset].tobytes()

    def _text(self) -> str:
        return self._bytes().decode("ascii")

    def _integers(self) -> tuple[int, ...]:
        count = self._integer()
        self._offset += 8 * count
        return struct.unpack_from(f"<{count}q", self._view, self._offset - 8 * count)

    def _float(self) -> float:
        (value,) = struct.unpack_from("<d", self._view, self._offset)
        self._offset += 8
        return float(value)

    def _complex(self) -> complex:
        self._offset += 16
        return complex(*_COMPLEX.unpack_from(self._view, self._offset - 16))

    def _data(self) -> np.ndarray[Any, Any]:
        """Return the aligned bytes of an array, as a view of the buffer."""
        size = self._integer()
        begin = self._offset + -self._offset % _ALIGNMENT
        self._offset = begin + size
        return self._buffer[begin : begin + size]

    def _array(self) -> np.ndarray[Any, Any]:
        dtype = np.dtype(self._text())
        is_fortran, *shape = self._integers()
        data = self._data().view(dtype)
        return data.reshape(shape, order="F" if is_fortran else "C")

    def _scalar(self) -> Any:
        dtype = np.dtype(self._text())
        return self._data().view(dtype)[0]

    def _tensor(self) -> torch.Tensor:
        name = self._text()
        dtype = _DTYPES[self._text()]
        shape, strides = self._integers(), self._integers()
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


def _require_supported(dtype: np.dtype[Any]) -> None:
    """Raise NotEncodableError unless a dtype is a number, a string or a time in native order."""
    if dtype.hasobject or dtype.names or dtype.subdtype or dtype.kind not in "?biufcSUmM":
        raise NotEncodableError(f"arrays of {dtype}")
    if dtype.byteorder == (">" if sys.byteorder == "little" else "<"):
        raise NotEncodableError("arrays that are not in the machine's byte order")

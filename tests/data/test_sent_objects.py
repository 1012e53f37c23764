"""What a worker returns arrives as torch's own loader delivers it, whatever it is made of."""

from __future__ import annotations

import collections
import dataclasses
import io
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from cputrain.data import DataLoader
from tests.data.samples import Rows


class Labelled(torch.Tensor):
    """A subclass of tensors."""


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Sample:
    image: Any
    label: Any


def _base() -> torch.Tensor:
    return torch.arange(3600.0).view(60, 60)


def _cycle() -> Any:
    cycle: list[Any] = [_base()]
    cycle.append(cycle)
    return cycle


def _twice() -> Any:
    tensor = _base()
    return [tensor, tensor]


def _read_only() -> Any:
    array = np.arange(5000)
    array.flags.writeable = False
    return array


def _mapped_array() -> Any:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(80_000))
        return np.memmap(file, dtype=np.float64, shape=(10_000,))


def _with_attribute() -> Any:
    tensor = _base()
    tensor.note = "kept?"  # type: ignore[attr-defined]
    return tensor


MADE: dict[str, Callable[[], Any]] = {
    "contiguous": _base,
    "small": lambda: torch.arange(6).view(2, 3),
    "one element of a row": lambda: _base()[:1, :1],
    "one element, strided": lambda: torch.arange(9.0).as_strided((1,), (5,), 2),
    "one column": lambda: _base()[:, 3:4],
    "stride 0": lambda: torch.ones(1).expand(4000),
    "stride 0 in the middle": lambda: _base().unsqueeze(1).expand(60, 3, 60),
    "transposed": lambda: _base().t(),
    "every other": lambda: _base()[::2, ::3],
    "tail": lambda: _base()[40:],
    "tail of what is small": lambda: torch.arange(20)[15:],
    "channels last": lambda: torch.ones(2, 3, 40, 40).to(memory_format=torch.channels_last),
    "overlapping": lambda: torch.arange(4000).unfold(0, 100, 50),
    "zero size": lambda: torch.empty(0, 3),
    "zero size of a view": lambda: _base()[:0],
    "zero size with strides": lambda: torch.empty(3, 0, 5).transpose(0, 2),
    "0-dim": lambda: torch.tensor(3.5),
    "0-dim of a view": lambda: _base()[3, 3],
    "complex": lambda: torch.complex(_base(), -_base()),
    "conjugate": lambda: torch.complex(_base(), -_base()).conj(),
    "imaginary part of a conjugate": lambda: torch.complex(_base(), -_base()).conj().imag,
    "real part": lambda: torch.complex(_base(), -_base()).real,
    "bfloat16": lambda: _base().bfloat16(),
    "float8": lambda: _base().to(torch.float8_e4m3fn),
    "uint16": lambda: _base().to(torch.uint16),
    "quantized": lambda: torch.quantize_per_tensor(_base(), 0.1, 10, torch.quint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        _base(), torch.rand(60) + 1, torch.zeros(60), 0, torch.qint8
    ),
    "sparse": lambda: torch.eye(60).to_sparse(),
    "compressed": lambda: torch.eye(60).to_sparse_csr(),
    "nested, strided": lambda: torch.nested.nested_tensor([torch.ones(3000), torch.ones(2)]),
    "meta": lambda: torch.empty(3000, device="meta"),
    "a leaf that requires gradients": lambda: _base().requires_grad_(),
    "a view that requires gradients": lambda: _base()[2:].requires_grad_(),
    "a parameter": lambda: torch.nn.Parameter(_base()),
    "a frozen parameter": lambda: torch.nn.Parameter(_base(), False),
    "a parameter of a view": lambda: torch.nn.Parameter(_base()[::2]),
    "a buffer": lambda: torch.nn.Buffer(_base()),
    "a module": lambda: torch.nn.BatchNorm1d(3000),
    "subclass": lambda: _base().as_subclass(Labelled),
    "subclass of a view": lambda: _base()[3:].as_subclass(Labelled),
    "with an attribute": _with_attribute,
    "inference": lambda: _inference(),
    "shared": lambda: _base().share_memory_(),
    "shared view": lambda: _base().share_memory_()[3:5],
    "storage": lambda: _base().untyped_storage(),
    "twice": _twice,
    "two views": lambda: (lambda base: [base[:10], base[5:]])(_base()),
    "a view and its base": lambda: (lambda base: [base[5:], base])(_base()),
    "two small views": lambda: (lambda base: [base[:3], base[1:]])(torch.arange(9)),
    "a tensor and its array": lambda: (lambda base: [base, base.numpy()])(_base()),
    "a tensor and its detached twin": lambda: (lambda base: [base, base.detach()])(_base()),
    "generator": lambda: torch.Generator().manual_seed(3),
    "dtype, device, size": lambda: [torch.int8, torch.device("cpu"), _base().shape],
    "array": lambda: np.arange(5000),
    "small array": lambda: np.arange(5),
    "Fortran order": lambda: np.asfortranarray(_base().numpy()),
    "array, transposed": lambda: _base().numpy().T,
    "array, strided": lambda: _base().numpy()[::2, ::3],
    "array, reversed": lambda: np.arange(5000)[::-1],
    "array, broadcast": lambda: np.broadcast_to(np.arange(3), (2000, 3)),
    "array, zero size": lambda: np.empty((0, 3)),
    "array, 0-dim": lambda: np.array(3.5),
    "array, one element": lambda: np.arange(9)[::5][:1],
    "structured": lambda: np.zeros(3000, dtype=[("a", "i4"), ("b", "f8")]),
    "objects": lambda: np.array([{"a": 1}, None, "text"], dtype=object),
    "datetime64": lambda: np.arange("2020-01-01", "2040-01-01", dtype="datetime64[D]"),
    "big-endian": lambda: np.arange(5000, dtype=">f8"),
    "text": lambda: np.array(["a", "bc"] * 2000),
    "bytes": lambda: np.array([b"a", b"bc"] * 2000),
    "read-only": _read_only,
    "read-only view": lambda: np.frombuffer(bytes(9000), dtype=np.uint8),
    "memory-mapped": _mapped_array,
    "matrix": lambda: np.matrix(np.ones((60, 60))),
    "masked": lambda: np.ma.masked_array(np.arange(3000), mask=np.arange(3000) % 2),
    "record array": lambda: np.rec.array(np.zeros(2000, dtype=[("a", "i4")])),
    "two views of an array": lambda: (lambda base: [base[:30], base[10:]])(_base().numpy()),
    "an array twice": lambda: (lambda base: [base, base])(np.arange(5000)),
    "NumPy number": lambda: np.float32(2.5),
    "random state": lambda: np.random.default_rng(3),
    "named tuple": lambda: Pair(_base(), 3),
    "dataclass": lambda: Sample(_base(), "label"),
    "ordered": lambda: collections.OrderedDict(b=_base(), a=1),
    "default": lambda: collections.defaultdict(list, a=[_base()]),
    "deque": lambda: collections.deque([_base(), 1], maxlen=3),
    "deep": lambda: {"a": [({"b": (_base(), [_base().numpy()])},)]},
    "sets": lambda: [{1, 2}, frozenset("a")],
    "cycle": _cycle,
    "bytearray": lambda: bytearray(20_000),
    "large bytes": lambda: bytes(20_000),
    "picklebuffer": lambda: io.BytesIO(bytes(20_000)),
    "packed": lambda: torch.nn.utils.rnn.pack_sequence([torch.ones(3000), torch.ones(2)]),
}


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return _base()


def describe(thing: Any) -> Any:
    """All that a script could see of it, as plain values; aliasing within it too."""
    storages: dict[int, int] = {}
    seen: dict[int, int] = {}

    def walk(value: Any) -> Any:
        if id(value) in seen:
            return "again", seen[id(value)]
        if isinstance(value, torch.Tensor | np.ndarray | list | dict):
            seen[id(value)] = len(seen)
        name = type(value).__name__
        if isinstance(value, torch.Tensor):
            return name, _of_tensor(value, storages)
        if isinstance(value, torch.UntypedStorage):
            return name, bytes(value), value.is_shared()
        if isinstance(value, torch.nn.Module):
            return name, [(key, walk(each)) for key, each in value.state_dict().items()]
        if isinstance(value, torch.Generator):
            return name, value.get_state().tolist()
        if isinstance(value, np.ndarray):
            return name, _of_array(value)
        if isinstance(value, dict):
            return name, [(key, walk(each)) for key, each in value.items()]
        if isinstance(value, list | tuple | collections.deque):
            return name, [walk(each) for each in value]
        if dataclasses.is_dataclass(value):
            return name, [(key, walk(each)) for key, each in vars(value).items()]
        if isinstance(value, io.BytesIO):
            return name, value.getvalue()
        if isinstance(value, np.random.Generator):
            return name, str(value.bit_generator.state)
        return name, value

    return walk(thing)


def _of_tensor(tensor: torch.Tensor, storages: dict[int, int]) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "shape": tuple(tensor.shape) if not tensor.is_nested else str(tensor.size(0)),
        "dtype": tensor.dtype,
        "device": str(tensor.device),
        "layout": tensor.layout,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "is_inference": tensor.is_inference(),
        "is_conj": tensor.is_conj(),
        "is_neg": tensor.is_neg(),
        "is_view": tensor._is_view(),
        "version": None if tensor.is_inference() else tensor._version,
        "attributes": sorted(vars(tensor)),
        "text": _text_of(tensor),
    }
    if tensor.layout is torch.strided and not tensor.is_nested:
        storage = tensor.untyped_storage()
        seen["stride"] = tensor.stride()
        seen["offset"] = tensor.storage_offset()
        seen["storage_bytes"] = storage.nbytes()
        if tensor.device.type == "cpu":
            seen["storage"] = storages.setdefault(storage.data_ptr(), len(storages))
            if not tensor.is_quantized:
                seen["values"] = tensor.detach().resolve_conj().resolve_neg().tolist()
    return seen


def _text_of(tensor: torch.Tensor) -> str:
    try:
        return str(tensor)
    except RuntimeError as error:  # of quantized ones, torch's loader loses the scale
        return str(error)


def _of_array(array: Any) -> dict[str, Any]:
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return {
        "shape": array.shape,
        "dtype": array.dtype.str,
        "strides": array.strides,
        "writeable": array.flags.writeable,
        "contiguous": (array.flags.c_contiguous, array.flags.f_contiguous),
        "aligned": array.flags.aligned,
        "values": str(array.tolist()),
    }


def _delivered(kind: Any, make: Callable[[], Any]) -> Any:
    def row(_: int) -> Any:
        return make()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loader = kind(Rows(row, 1), batch_size=None, num_workers=1, collate_fn=_as_it_is)
            (thing,) = loader
        except Exception as error:
            return type(error), str(error).splitlines()[0]
    return describe(thing)


def _as_it_is(thing: Any) -> Any:
    return thing


NARROWED = {"offset", "storage_bytes"}
"""A view is sent with the part of its storage that it spans, where torch sends all of it."""

DIFFERENT: dict[str, set[str]] = {
    "one element of a row": NARROWED,
    "one element, strided": NARROWED,
    "one column": NARROWED,
    "every other": NARROWED,
    "tail": NARROWED,
    "tail of what is small": NARROWED,
    "zero size of a view": NARROWED,
    "0-dim of a view": NARROWED,
    "real part": NARROWED,
    "a view that requires gradients": NARROWED,
    "a parameter of a view": NARROWED,
    "two views": NARROWED,
    "a view and its base": NARROWED,
    "two small views": NARROWED,
    # torch loses the conjugate bit, and memory that NumPy has lent
    "conjugate": {"text", "values"},
    "imaginary part of a conjugate": {*NARROWED, "stride", "text", "values"},
    "a tensor and its array": {"values"},
    "big-endian": {"dtype"},
}
"""What is known to differ from torch, of tensors and arrays that differ at all."""


def _differences(ours: Any, theirs: Any) -> set[str]:
    """Names of what differs; an empty one where it has no name."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return {key for key in ours if str(ours[key]) != str(theirs[key])}
    if isinstance(ours, list | tuple) and type(ours) is type(theirs) and len(ours) == len(theirs):
        return set().union(*map(_differences, ours, theirs))
    return set() if str(ours) == str(theirs) else {""}


@pytest.mark.parametrize("name", MADE)
def test_objects_arrive_as_torch_delivers_them(name: str) -> None:
    ours, theirs = (_delivered(kind, MADE[name]) for kind in (DataLoader, TorchLoader))
    assert _differences(ours, theirs) <= DIFFERENT.get(name, set())


def test_a_tensor_that_is_no_leaf_is_told() -> None:
    # with torch, the thread that pickles prints the error, and the script waits for ever
    kind, text = _delivered(DataLoader, lambda: _base().requires_grad_() * 2)
    assert kind is RuntimeError
    assert text == "Caught RuntimeError in DataLoader worker process 0."


@pytest.mark.parametrize("size", [1, 125, 126, 5000])
def test_arrays_own_their_memory_as_torchs_do(size: int) -> None:
    """Such an array can be resized in place."""
    rows = Rows(lambda row: np.full(size, row), 4)
    ours, theirs = (
        [
            array.flags.owndata
            for batch in loader(rows, 2, num_workers=1, collate_fn=list)
            for array in batch
        ]
        for loader in (DataLoader, TorchLoader)
    )
    assert ours == theirs


def test_conjugates_arrive_as_they_are() -> None:
    expected = describe(MADE["conjugate"]())[1]["values"]
    assert _delivered(DataLoader, MADE["conjugate"])[1]["values"] == expected

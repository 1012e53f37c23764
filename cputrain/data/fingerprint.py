"""A hash of everything a dataset's samples depend on: code, attributes, and library versions.

Two datasets with the same key give the same samples, unless these depend on random numbers or on
files that change; `sample_watch` detects both.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
import operator
import os
import random
import re
import site
import sys
import sysconfig
import types
from collections import OrderedDict, defaultdict, deque
from enum import Enum
from functools import cache, partial
from importlib import metadata
from typing import Any

import numpy as np
import torch

from cputrain.data.epoch_prefetch import is_volatile
from cputrain.data.sample_format import VERSION
from cputrain.data.sample_watch import file_state

_SCALAR_TYPES = (bool, int, float, complex, str, bytes, type(None), type(...))

_MIN_BULK_LENGTH = 64
"""Longer containers are hashed with `marshal` at once, if they hold only numbers and strings."""

_MARSHAL_VERSION = 2
"""The last version whose bytes do not depend on reference counts."""

_LRU_CACHE = type(cache(len))

_DESCRIPTORS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


class NoKeyError(Exception):
    """A dataset has no key, as it depends on something that cannot be hashed; the text names it."""


HashedList = tuple[Any, tuple[Any, ...], bytes]
"""A long list, its immutable elements, and their digest."""


def _are_identical(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _is_constant(element: Any) -> bool:
    return type(element) in _SCALAR_TYPES or (
        type(element) is tuple and all(type(item) in _SCALAR_TYPES for item in element)
    )


def _shared_memory_error(where: str) -> NoKeyError:
    return NoKeyError(f"{where} is shared with other processes, which may change it")


class Fingerprint:
    """The key of a dataset, with the generators and the names that its code uses.

    Args:
        dataset: The dataset.
        by_identity: Whether objects of unsupported types are hashed by `id`; the key is then valid
            in this process only. Otherwise they raise `NoKeyError`.
        known: Long lists hashed by earlier fingerprints, by `id`; those of this one are added.
    """

    def __init__(
        self, dataset: Any, *, by_identity: bool, known: dict[int, HashedList] | None = None
    ) -> None:
        self._known = {} if known is None else known
        self._digest = hashlib.blake2b(digest_size=16)
        self._by_identity = by_identity
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []
        self.generators: list[Any] = []
        """Random number generators that the dataset or its code holds."""
        self.names: set[str] = set()
        """The names of globals and attributes that the dataset's code uses."""
        self._add(dataset, "the dataset")
        for name in ("torch", "numpy", "Pillow", "torchvision"):
            self._put(name, _version(name))
        self._put(sys.version, torch.get_default_dtype(), VERSION)
        self.key = self._digest.hexdigest()

    def _put(self, *texts: object) -> None:
        """Hash strings or bytes, with their lengths."""
        for text in texts:
            data = text if isinstance(text, bytes) else str(text).encode("utf-8", "surrogatepass")
            self._digest.update(len(data).to_bytes(8, "little"))
            self._digest.update(data)

    def _add(self, value: Any, where: str) -> None:
        """Hash a value and all that it holds; `where` names it in errors."""
        kind = type(value)
        if is_volatile(value) and not isinstance(value, GENERATORS) and not _is_opaque(value):
            raise _shared_memory_error(where)
        if kind in _SCALAR_TYPES:
            self._put(kind.__name__, value if kind is bytes else repr(value))
            return
        if id(value) in self._seen:
            self._put("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)  # an id is unique only while its object exists
        if kind in (list, tuple, dict) and len(value) > _MIN_BULK_LENGTH and self._add_bulk(value):
            return
        if kind in (list, tuple):
            self._put(kind.__name__, len(value))
            for element in value:
                self._add(element, where)
        elif kind is dict:
            self._put("dict", len(value))
            for key, element in value.items():
                self._add(key, where)
                self._add(element, f"{where}[{key!r}]" if type(key) in _SCALAR_TYPES else where)
        elif kind in (OrderedDict, defaultdict):
            self._put(kind.__qualname__)
            self._add([getattr(value, "default_factory", None), list(value.items())], where)
        elif kind is deque:
            self._put("deque", value.maxlen)
            self._add(list(value), where)
        elif kind in (set, frozenset) and all(map(_sort_key, value)):
            self._put(kind.__name__)
            for element in sorted(value, key=_sort_key):
                self._add(element, where)
        elif isinstance(value, np.memmap) and value.filename is not None and value.mode != "r+":
            self._put("memmap", value.dtype, value.shape, value.offset, *file_state(value.filename))
        elif isinstance(value, (np.ndarray, np.generic)):
            self._add_array(np.asarray(value), where)
        elif isinstance(value, torch.Tensor):
            self._add_tensor(value, where)
        elif isinstance(value, GENERATORS):
            self.generators.append(value)
            self._put(kind.__qualname__)
        elif isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            self._put("torch", value)
        elif isinstance(value, (os.PathLike, re.Pattern, np.dtype, slice, range)):
            self._put(kind.__qualname__, repr(value))
        elif isinstance(value, Enum):
            self._put("member", kind.__module__, kind.__qualname__, value.name)
        elif kind.__module__ == "typing" or isinstance(
            value, (types.GenericAlias, types.UnionType)
        ):
            self._put("typing", repr(value))
        elif isinstance(value, logging.Logger):
            self._put("logger", value.name)
        elif isinstance(value, types.ModuleType):
            self._put("module", value.__name__, _version(value.__name__.partition(".")[0]))
        else:
            self._add_code_or_object(value, where)

    def _add_bulk(self, container: Any) -> bool:
        """Hash a container of numbers, strings and such containers; return False for others."""
        known = self._known.get(id(container))
        elements = tuple(container) if type(container) is not dict else ()
        if known is None or known[0] is not container or not _are_identical(known[1], elements):
            try:
                data = marshal.dumps(container, _MARSHAL_VERSION)
            except ValueError:
                return False
            known = container, elements, hashlib.blake2b(data, digest_size=16).digest()
            if elements and all(map(_is_constant, elements)):
                self._known[id(container)] = known
        self._put("values", known[2])
        return True

    def _add_code_or_object(self, value: Any, where: str) -> None:
        if isinstance(value, types.FunctionType):
            self._add_function(value, where)
        elif isinstance(value, types.MethodType):
            self._put("method")
            self._add(value.__func__, where)
            self._add(value.__self__, where)
        elif isinstance(value, partial):
            self._put("partial")
            self._add([value.func, value.args, value.keywords], where)
        elif isinstance(value, (staticmethod, classmethod)):
            self._put(type(value).__name__)
            self._add(value.__func__, where)
        elif isinstance(value, property):
            self._put("property")
            self._add([value.fget, value.fset], where)
        elif isinstance(value, type):
            self._add_class(value, where)
        elif isinstance(value, types.CodeType):
            self._add_bytecode(value, where)
        elif isinstance(value, _DESCRIPTORS):
            self._put("descriptor", value.__qualname__)
        elif isinstance(value, _LRU_CACHE):
            self._put("lru_cache")
            self._add(value.__wrapped__, where)
        elif isinstance(value, types.BuiltinFunctionType) and isinstance(
            value.__self__, (types.ModuleType, type(None), type)
        ):
            self._put("builtin", value.__module__, value.__qualname__)
        elif _has_attribute_state(value):
            self._put("object")
            self._add(type(value), where)
            for name, attribute in sorted(_attributes_of(value).items()):
                self._put(name)
                self._add(attribute, f"{where}.{name}")
        elif self._by_identity:
            self._put("itself", id(value))
        else:
            kind = type(value)
            raise NoKeyError(
                f"{where} is a {kind.__module__}.{kind.__qualname__}, whose value cannot be "
                "compared with that of another run"
            )

    def _add_array(self, array: np.ndarray[Any, Any], where: str) -> None:
        base: Any = array.base
        while base is not None:
            if is_volatile(base):
                raise _shared_memory_error(where)
            base = getattr(base, "base", getattr(base, "obj", None))
        self._put("array", array.dtype.str, array.shape)
        if array.dtype.hasobject:
            self._add(array.ravel().tolist(), where)
        else:
            self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _add_tensor(self, tensor: torch.Tensor, where: str) -> None:
        if _is_opaque(tensor):
            raise NoKeyError(f"{where} is a tensor that is not dense, or not on the CPU")
        plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        self._put("tensor", type(tensor).__qualname__, plain.dtype, tuple(plain.shape))
        self._digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def _add_function(self, function: types.FunctionType, where: str) -> None:
        """Hash a function's bytecode, defaults, closure, and the globals that it uses."""
        module = str(function.__globals__.get("__name__", ""))
        if _is_installed(module):
            self._put("function", module, function.__qualname__)
            self._add([cell.cell_contents for cell in _filled_cells(function.__closure__)], where)
            return
        self._put("function", function.__qualname__)
        self._add(function.__code__, where)
        self._add([function.__defaults__, function.__kwdefaults__], where)
        self._add([cell.cell_contents for cell in _filled_cells(function.__closure__)], where)

        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                self._put(name)
                self._add(function.__globals__[name], name)

    def _add_bytecode(self, code: types.CodeType, where: str) -> None:
        self.names.update(code.co_names)
        self._put("code", code.co_code, code.co_names, code.co_varnames, code.co_argcount)
        for constant in code.co_consts:
            self._add(constant, where)

    def _add_class(self, kind: type, where: str) -> None:
        """Hash a class's bases, attributes and methods; of a library's class, only its version."""
        self._put("class", kind.__module__, kind.__qualname__)
        if not kind.__flags__ & _HEAP_TYPE or _is_installed(kind.__module__):
            self._put(_version(kind.__module__.partition(".")[0]))
            return
        if issubclass(kind, Enum):
            self._add([(member.name, member.value) for member in kind], where)
            return
        self._add(kind.__bases__, where)
        for name, value in sorted(vars(kind).items()):
            if name not in _NOT_CODE:
                self._put(name)
                self._add(value, f"{kind.__qualname__}.{name}")


_NOT_CODE = frozenset(
    ("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__slots__",
     "__parameters__", "__orig_bases__", "__abstractmethods__", "_abc_impl", "__firstlineno__",
     "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__",
     "__annotate__", "__annotations_cache__")
)  # fmt: skip


def _is_opaque(value: Any) -> bool:
    """Return whether a value is a tensor that is not strided, not on the CPU, or quantized."""
    return isinstance(value, torch.Tensor) and (
        value.device.type != "cpu" or value.layout is not torch.strided or value.is_quantized
    )


def _sort_key(element: Any) -> str:
    """Return the sort key of a set's element; empty if elements of its type have none."""
    if type(element) in _SCALAR_TYPES:
        return f"{type(element).__name__} {element!r}"
    name = getattr(element, "__qualname__", None)
    module = getattr(element, "__module__", "")
    return f"{module}.{name}" if isinstance(name, str) else ""


def _has_attribute_state(value: Any) -> bool:
    """Return whether an object's class is written in Python, so that attributes are its state."""
    kind = type(value)
    if not all(
        base.__flags__ & _HEAP_TYPE or base in (object, dict, list, tuple) for base in kind.__mro__
    ):
        return False
    if any(
        getattr(kind, name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__")
    ):
        return False
    try:
        object.__reduce_ex__(value, 2)  # raises if the object has state beside its attributes
    except Exception:  # the script's `__getstate__` may raise anything
        return False
    return True


_HEAP_TYPE = 1 << 9


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return an object's attributes and slots, and the items of a container."""
    attributes = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes[name] = getattr(value, name)
    if isinstance(value, dict):
        attributes["(items)"] = list(dict.items(value))
    elif isinstance(value, (list, tuple)):
        attributes["(items)"] = list(value)
    return attributes


def _filled_cells(cells: Any) -> list[Any]:
    """Return the cells of a closure that are not empty."""
    filled = []
    for cell in cells or ():
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:
            continue
        filled.append(cell)
    return filled


def _global_names(code: types.CodeType) -> set[str]:
    """Return the names of globals and attributes in bytecode and its nested functions."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _is_installed(module: str) -> bool:
    """Return whether a module is of an installed package, whose version stands for its code."""
    root = module.partition(".")[0]
    if root == "cputrain" or (root in sys.stdlib_module_names and root != "builtins"):
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return file.startswith(_SITE_PACKAGES) and bool(_version(root))


_SITE_PACKAGES = tuple(
    {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
)


@cache
def _version(name: str) -> str:
    """Return the version of an installed package; empty if it is unknown."""
    try:
        return metadata.version("Pillow" if name == "PIL" else name)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(name), "__version__", ""))

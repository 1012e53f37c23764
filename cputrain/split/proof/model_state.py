"""Copies, snapshots and outlines of all objects that are reachable from a model.

A proof runs on copies and so leaves a refused model as it is: tensors, random generators, lists,
dicts and objects in attributes and closures are copied at any depth. `snapshot` returns the values
of all of them by name, and `changes` the names of those that differ.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
import warnings
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum
from functools import cache, partial
from io import IOBase
from itertools import takewhile
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import nn

from cputrain.split.proof.refusal import CannotSplitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from cputrain.split.proof.read_names import ReadNames

ATOMS = (
    int, float, complex, bool, str, bytes, type(None), type, ModuleType, BuiltinFunctionType,
    CodeType, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, range,
    slice, type(...), ReferenceType, GeneratorType,
)  # fmt: skip
"""Types without state, or with state that cannot be copied."""

SIMPLE = frozenset({int, float, bool, str, bytes, type(None), type})
"""The most frequent types of `ATOMS`."""

VARIABLES = (int, float, list, dict, set, deque, torch.Tensor, ContextVar, threading.local)
"""Types of global variables and class attributes that count as state."""

HOOK_TABLES = frozenset({
    "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook", "_forward_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
    "_parameters", "_buffers", "_modules", "_version", "call_super_init",
})  # fmt: skip
"""Attributes of `nn.Module` that `structure` leaves to other checks."""

MAX_DEPTH = 400
MAX_VALUES = 200_000
"""Most values of a snapshot; a model with more is not split."""

OUTLINED_DEPTH = 12
"""Depth of containers in an outline; deeper values are compared by identity."""

MAX_OUTLINED = 10_000
"""Most containers and objects in an outline; further ones are compared by identity."""


class TooManyValuesError(ValueError):
    """A model has more or deeper values than a snapshot may have."""


class StateCopier:
    """Deep copy of a model with all objects that are reachable from it."""

    def __init__(
        self,
        convert: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
        read: ReadNames | None = None,
    ) -> None:
        """Set up an empty copy.

        Args:
            convert: copies a tensor, for example to another dtype or device.
            read: names of attributes to copy; others of modules are shared with the copy. All are
                copied by default.
        """
        self._convert = convert
        self._read = read
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = []

    def put(self, value: Any, copied: Any) -> None:
        """Register the object that replaces a value in the copy."""
        self._alive.append(value)
        self._memo[id(value)] = copied

    def copy(self, value: Any) -> Any:
        """Return a copy; a value without state or that cannot be copied is returned as it is."""
        if isinstance(value, ATOMS):
            return value
        key = id(value)
        if key in self._memo:
            return self._memo[key]
        self._alive.append(value)
        return self._copied(value, key)

    def _copied(self, value: Any, key: int) -> Any:
        """Copy a value by its type and register the copy in the memo."""
        result: Any
        if isinstance(value, torch.Tensor):
            self._memo[key] = result = self._tensor(value)
            return result
        if isinstance(value, nn.Module):
            return self._module(value, key)
        if isinstance(value, torch.Generator):
            result = torch.Generator(value.device)
            result.set_state(value.get_state())
            self._memo[key] = result
            return result
        if isinstance(value, FunctionType):
            return self._function(value, key)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.copy(value.__self__))
        if type(value) is partial:
            args = [self.copy(item) for item in value.args]
            return partial(self.copy(value.func), *args, **self._dict(value.keywords))
        if isinstance(value, dict):
            return self._mapping(value, key)
        if isinstance(value, list | deque):
            result = self._memo[key] = copy.copy(value)
            for index, item in enumerate(value):
                result[index] = self.copy(item)
            self._attributes(value, result)
            return result
        if isinstance(value, tuple):
            items = [self.copy(item) for item in value]
            if all(item is original for item, original in zip(items, value, strict=True)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, set | frozenset):
            result = self._memo[key] = type(value)(self.copy(item) for item in value)
            return result
        return self._object(value, key)

    def _dict(self, value: dict[str, Any]) -> dict[str, Any]:
        """Copy the values of a plain dict."""
        return {name: self.copy(item) for name, item in value.items()}

    def _mapping(self, value: dict[Any, Any], key: int) -> Any:
        """Copy a dict of any subclass."""
        result: Any
        if type(value) in (dict, OrderedDict):
            result = type(value)()
        elif isinstance(value, defaultdict):
            result = defaultdict(value.default_factory)
        else:
            result = copy.copy(value)
        self._memo[key] = result
        # a subclass may override __setitem__; an OrderedDict keeps its order separately
        set_item: Any = (
            OrderedDict.__setitem__ if isinstance(result, OrderedDict) else dict.__setitem__
        )
        for name, item in value.items():
            set_item(result, self.copy(name), self.copy(item))
        self._attributes(value, result)
        return result

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        """Copy a tensor or parameter, without its graph."""
        with torch.no_grad(), torch.inference_mode(False):
            result = self._convert(value.detach())
            if result is value or result.data_ptr() == value.data_ptr() != 0:
                result = result.clone()
        if isinstance(value, nn.Parameter):
            parameter = nn.Parameter(result, value.requires_grad)
            parameter.__dict__.update(
                {
                    name: attribute
                    for name, attribute in value.__dict__.items()
                    if not callable(attribute)
                }
            )
            return parameter
        return result.requires_grad_(value.requires_grad and result.is_floating_point())

    def _module(self, module: nn.Module, key: int) -> nn.Module:
        """Copy a module; attributes that no forward reads are shared with the original."""
        if isinstance(module, torch.jit.ScriptModule):
            self._memo[key] = module
            return module
        result = object.__new__(type(module))
        self._memo[key] = result
        attributes = result.__dict__
        for name, value in module.__dict__.items():
            is_read = self._read is None or self._read.has(type(module), name)
            is_empty_table = name.endswith("_hooks") and not value
            attributes[name] = self.copy(value) if is_read and not is_empty_table else value
        if isinstance(result, nn.RNNBase):
            weights = [attributes["_parameters"].get(name) for name in result._flat_weights_names]
            attributes["_flat_weights"] = weights
            attributes["_flat_weight_refs"] = [
                None if weight is None else ref(weight) for weight in weights
            ]
            # cuDNN makes the weights contiguous in each call, and torch warns about it
            warnings.filterwarnings("ignore", message="RNN module weights are not part of")
            result.flatten_parameters()
        return result

    def _function(self, function: FunctionType, key: int) -> FunctionType:
        """Copy a function that may keep state in its closure or defaults."""
        cells = function.__closure__ or ()
        if not cells and not function.__defaults__ and not function.__kwdefaults__:
            return function
        closure = tuple(CellType() for _ in cells)
        result = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, closure or None
        )
        self._memo[key] = result  # a function may be in its closure
        for cell, copied_cell in zip(cells, closure, strict=True):
            with suppress(ValueError):  # an empty cell
                copied_cell.cell_contents = self.copy(cell.cell_contents)
        result.__defaults__ = self.copy(function.__defaults__)
        result.__kwdefaults__ = self.copy(function.__kwdefaults__)
        result.__dict__.update(function.__dict__)
        result.__qualname__, result.__module__ = function.__qualname__, function.__module__
        return result

    def _object(self, value: Any, key: int) -> Any:
        """Copy any other object; return the original if it cannot be copied."""
        attributes = getattr(value, "__dict__", None)
        new: Any = type(value).__new__
        if attributes is not None and new is object.__new__:
            result = self._memo[key] = object.__new__(type(value))
            for name, attribute in attributes.items():
                result.__dict__[name] = self.copy(attribute)
            for name in _slots(type(value)):  # type: ignore[arg-type]
                if hasattr(value, name):
                    object.__setattr__(result, name, self.copy(getattr(value, name)))
            return result
        try:
            result = copy.deepcopy(value, self._memo)
        except Exception:
            result = value
        self._memo[key] = result
        return result

    def _attributes(self, value: Any, result: Any) -> None:
        """Copy the attributes of a container of a subclass."""
        if type(value).__dictoffset__ and getattr(value, "__dict__", None):
            result.__dict__.update(self._dict(value.__dict__))


@cache
def _slots(kind: Hashable) -> list[str]:
    """Return the names in `__slots__` of a class and its bases."""
    names: list[str] = []
    for base in kind.__mro__:  # type: ignore[attr-defined]
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _content(cell: CellType) -> Any:
    """Return the value in a closure cell; None for an empty cell."""
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def reachable(value: Any, read: ReadNames | None = None) -> Iterator[tuple[str, Any]]:
    """Iterate over names and values of all reachable objects, each object once.

    Attributes of modules that are not `read` are left out.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    count = 0
    while stack:
        path, current, depth = stack.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise TooManyValuesError(
                "it has too many values to tell which of them a forward changes"
            )
        if type(current) in SIMPLE or isinstance(current, ATOMS):
            yield path, current
            continue
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield path, current
        if not isinstance(current, torch.Tensor | torch.Generator):
            stack += [
                (inner_path, inner_value, depth + 1)
                for inner_path, inner_value in _children(path, current, read)
            ]


def _children(path: str, value: Any, read: ReadNames | None) -> Iterator[tuple[str, Any]]:
    """Iterate over names and values that an object holds directly."""
    if isinstance(value, nn.Module):
        for name, item in value.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                yield from (
                    (_join(path, name_inside), child) for name_inside, child in item.items()
                )
            elif read is not None and not read.has(type(value), name):
                continue
            elif name not in HOOK_TABLES or item:
                yield _join(path, name), item
        return
    if isinstance(value, dict):
        yield from ((f"{path}[{name!r}]", item) for name, item in list(value.items()))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((path, item) for item in value)
    elif isinstance(value, FunctionType):
        for index, cell in enumerate(value.__closure__ or ()):
            yield f"{path} ({value.__code__.co_freevars[index]})", _content(cell)
        yield from ((path, item) for item in value.__defaults__ or ())
        yield from ((path, item) for item in (value.__kwdefaults__ or {}).values())
        return
    elif isinstance(value, MethodType):
        yield path, value.__self__
        return
    elif type(value) is partial:
        yield from ((path, item) for item in (value.func, *value.args, *value.keywords.values()))
        return
    elif isinstance(value, ContextVar):
        yield path, value.get(None)
        return
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((_join(path, str(name)), item) for name, item in list(attributes.items()))
    for name in _slots(type(value)):  # type: ignore[arg-type]
        if hasattr(value, name):
            yield _join(path, name), getattr(value, name)


def _join(path: str, name: str) -> str:
    """Return the dotted path of an attribute."""
    return f"{path}.{name}" if path else name


def snapshot(value: Any, read: ReadNames | None = None) -> dict[str, Any]:
    """Return a comparable fingerprint of each reachable value, by name."""
    fingerprints: dict[str, Any] = {}
    for name, item in reachable(value, read):
        key = name
        while key in fingerprints:
            key += "'"
        fingerprints[key] = _fingerprint(item)
    return fingerprints


def _fingerprint(value: Any) -> Any:
    """Return a comparable stand-in for a value: by content, or by identity and version."""
    if type(value) in SIMPLE:
        return type(value), "nan" if value != value else value
    if isinstance(value, torch.Tensor):
        version = None if value.is_inference() else value._version
        grad = id(value.grad) if value.is_leaf and value.grad is not None else None
        return id(value), version, tuple(value.shape), value.requires_grad, grad, _address(value)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, numpy.random.RandomState):
            return repr(value.get_state())
        if isinstance(value, numpy.ndarray):
            return id(value), value.tobytes() if value.dtype != object else repr(value)
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, int | float | complex | bool | str | bytes | None):
        return type(value), value
    if isinstance(value, dict):
        return type(value), tuple(map(_name, value))
    if isinstance(value, list | tuple | deque):
        return type(value), len(value)
    if isinstance(value, set | frozenset):
        return type(value), tuple(sorted(map(_name, value)))
    if isinstance(value, bytearray | memoryview | array):
        return type(value), bytes(value)
    if isinstance(value, MethodType):
        return id(value.__func__), id(value.__self__)
    return type(value), id(value)


def _name(key: Any) -> str:
    """Return a comparable stand-in for a key or set item."""
    return repr(key) if isinstance(key, str | int | float | bytes | bool | None) else str(id(key))


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's data; 0 for other layouts than strided."""
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the values that differ or are in one snapshot only."""
    return [name for name in {**before, **after} if before.get(name, _MISSING) != after.get(name)]


_MISSING = object()


def uncopied(value: Any, read: ReadNames) -> str:
    """Return the kind and name of a reachable object that cannot be copied, or "".

    An iterator cannot be read without advancing it, and a `threading.local` is empty in the
    replicas' threads.
    """
    for name, item in reachable(value, read):
        if isinstance(item, Iterator | IOBase) and not isinstance(item, torch.Generator):
            return f"an iterator ({name.removeprefix('[0].')})"
        if isinstance(item, threading.local):
            return f"a threading.local ({name.removeprefix('[0].')})"
    return ""


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules of `model.modules()` in another order and in less time."""
    modules: dict[int, nn.Module] = {}
    stack = [model]
    while stack:
        module = stack.pop()
        if id(module) not in modules:
            modules[id(module)] = module
            stack += [child for child in module._modules.values() if child is not None]
    return list(modules.values())


def structure(model: nn.Module, read: ReadNames) -> tuple[Any, ...]:
    """Return the key that a proof is valid for: modules, flags, numbers and functions.

    Items are compared by value or identity. Values of parameters and buffers are left out, as they
    differ from call to call.
    """
    key: list[Any] = []
    classes: dict[type, None] = {}
    outline = _Outline()
    for module in modules_of(model):
        key.append(id(module))
        classes[type(module)] = None
        for value in read.readable_values(module):
            key.append(value if type(value) in SIMPLE else outline.of(value))
        for parameter in module._parameters.values():
            if parameter is not None:
                key.append((parameter.requires_grad, parameter.dim()))
    for cls in classes:
        key.append((_class_outline(cls, read), _globals_outline(cls)))
    return tuple(key)


def _class_outline(kind: type, read: ReadNames) -> tuple[Any, ...]:
    """Return an outline of a class and its bases, which shows methods and flags set on them."""
    bases = takewhile(lambda base: base is not nn.Module, kind.__mro__)
    return tuple(
        (id(base), *[_Outline().of(value) for name, value in list(base.__dict__.items())
                    if not name.startswith("__") and read.has(kind, name)])
        for base in bases if not base.__module__.startswith("torch.")
    )  # fmt: skip


def outline_of(model: nn.Module, read: ReadNames) -> dict[str, Any]:
    """Return the key of `structure` by name, to tell which item differs."""
    outlines = {
        _join(path, name): _Outline().of(value)
        for path, module in model.named_modules()
        for name, value in module.__dict__.items()
        if name not in HOOK_TABLES and read.has(type(module), name)
    }
    for path, module in model.named_modules():
        kind = type(module)
        outlines[path or "the model"] = (
            id(module),
            _class_outline(kind, read),
            _globals_outline(kind),
        )
    for name, parameter in model.named_parameters():
        outlines[f"{name}.requires_grad"] = parameter.requires_grad
    return outlines


def objects_of(model: nn.Module) -> list[Any]:
    """Return the objects that `structure` identifies by id; holding them keeps the ids unique."""
    return [
        value
        for module in model.modules()
        for value in (*module.__dict__.values(), getattr(type(module), "forward", None))
        if not isinstance(value, torch.Tensor) and type(value) not in SIMPLE
    ]


class GlobalState:
    """State of globals, class attributes and defaults that a model's methods refer to."""

    def __init__(self, model: nn.Module) -> None:
        """Save the state; raise CannotSplitError where a variable is a `threading.local`."""
        self._variables: list[tuple[Any, str, Any, Any]] = []
        for kind in dict.fromkeys(map(type, model.modules())):
            for owner, name in _variables_read(kind, getattr(kind, "forward", None)):
                value = _value_in(owner, name)
                if isinstance(value, threading.local):
                    raise CannotSplitError(f"it reads a threading.local ({name})")
                self._variables.append((owner, name, value, StateCopier().copy(value)))
        self._before = self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        """Return a snapshot of the current values of the variables."""
        return snapshot([_value_in(owner, name) for owner, name, _, _ in self._variables])

    def restore(self) -> str:
        """Restore the saved state; return the name of a variable that had changed, or ""."""
        changed_names = changes(self._before, self._snapshot())
        if not changed_names:
            return ""
        for owner, name, value, copied in self._variables:
            if _value_in(owner, name) is not value:
                _set_value(owner, name, value)
            _restore_contents(value, copied)
        owner, name, _, _ = self._variables[int(changed_names[0][1:].partition("]")[0])]
        if isinstance(owner, dict):
            return f"the global variable {name}"
        qualname: str = owner.__qualname__
        return (
            f"the defaults of {qualname}"
            if isinstance(owner, FunctionType)
            else f"{qualname}.{name}"
        )


def _value_in(owner: Any, name: str) -> Any:
    """Return the value of a variable; of a context variable, its value in this thread."""
    value = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
    return value.get(None) if isinstance(value, ContextVar) else value


def _set_value(owner: Any, name: str, value: Any) -> None:
    """Set a global variable or an attribute."""
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _restore_contents(value: Any, copied: Any) -> None:
    """Restore the contents of a container or tensor from its copy, in place."""
    if isinstance(value, list):
        value[:] = copied
    elif isinstance(value, dict | set):
        value.clear()
        value.update(copied)
    elif isinstance(value, deque):
        value.clear()
        value.extend(copied)
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(copied)
    elif isinstance(value, tuple):
        for item, copied_item in zip(value, copied, strict=True):
            _restore_contents(item, copied_item)


def _globals_outline(kind: type) -> tuple[Any, ...]:
    """Return an outline of the global variables that the methods of a class read."""
    read = _variables_read(kind, getattr(kind, "forward", None))
    return tuple([_Outline().of(_value_in(owner, name), OUTLINED_DEPTH) for owner, name in read])


@cache
def _variables_read(kind: Hashable, _forward: Hashable) -> tuple[tuple[Any, str], ...]:
    """Return the owner (namespace, class or function) and name of each variable that may change."""
    variables: dict[tuple[int, str], tuple[Any, str]] = {}
    for base in kind.__mro__:  # type: ignore[attr-defined]
        if base.__module__.startswith("torch."):
            break
        for value in vars(base).values():
            if isinstance(value, FunctionType):
                namespace = value.__globals__
                for name in value.__code__.co_names:
                    if isinstance(namespace.get(name), VARIABLES):
                        variables[id(namespace), name] = namespace, name
                    elif isinstance(namespace.get(name), type):
                        variables.update(_variables_of(namespace[name]))
                if value.__defaults__:
                    variables[id(value), "__defaults__"] = value, "__defaults__"
        variables.update(_variables_of(base))
    return tuple(variables.values())


def _variables_of(kind: type) -> dict[tuple[int, str], tuple[Any, str]]:
    """Return the attributes of a user's class that may change, in the form of `_variables_read`."""
    if kind.__module__.partition(".")[0] in ("torch", "builtins", "collections", "cputrain"):
        return {}
    return {
        (id(kind), name): (kind, name)
        for name, value in vars(kind).items()
        if isinstance(value, VARIABLES) and not name.startswith("__")
    }


def outline(value: Any) -> Any:
    """Return the key of an argument that a proof is valid for: its value, or type and contents."""
    return _Outline(by_contents=True).of(value)


class _Outline:
    """Comparable outline of nested values; a repeated object is replaced by its index."""

    def __init__(self, *, by_contents: bool = False) -> None:
        self._by_contents = by_contents
        self._indices: dict[int, int] = {}

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return a comparable outline of a value and its contents."""
        kind = type(value)  # (isinstance would read __class__, which an object may compute)
        if kind in SIMPLE:
            return (kind, value) if value == value else "nan"
        if kind is tuple and SIMPLE.issuperset(map(type, value)):
            return value
        if kind in (tuple, list, dict, OrderedDict) or issubclass(kind, list | tuple | dict):
            return self._of_container(value, depth)
        if issubclass(kind, torch.Tensor):
            identity = value.dtype if self._by_contents else id(value)
            return identity, value.dim(), value.requires_grad
        if issubclass(kind, int | float | str | bytes | complex | torch.device | torch.dtype):
            return kind, value
        if issubclass(kind, (*ATOMS, FunctionType, Enum, property, staticmethod, classmethod)):
            return id(value)
        if issubclass(kind, MethodType):
            return id(value.__func__), id(value.__self__)
        if kind is ContextVar:
            return id(value), self.of(value.get(None), depth + 1)
        if issubclass(kind, set | frozenset):
            return frozenset(map(_name, value))
        return self._of_container(value, depth)

    def _of_container(self, value: Any, depth: int) -> Any:
        """Return the outline of a container, or the index of one that was seen before."""
        kind = type(value)
        if id(value) in self._indices:
            return "again", self._indices[id(value)]
        number = self._indices[id(value)] = len(self._indices)
        if issubclass(kind, nn.Module) or depth > OUTLINED_DEPTH or number > MAX_OUTLINED:
            return kind if self._by_contents else id(value)
        if issubclass(kind, dict):
            return kind, tuple(
                [(_name(key), self.of(item, depth + 1)) for key, item in value.items()]
            )
        if issubclass(kind, list | tuple | deque):
            return kind, tuple([self.of(item, depth + 1) for item in value])
        return self._of_object(value, depth)

    def _of_object(self, value: Any, depth: int) -> Any:
        """Return the outline of an object's attributes and slots."""
        kind = type(value)
        attributes = getattr(value, "__dict__", None)
        slots = _slots(kind)  # type: ignore[arg-type]
        identity = kind if self._by_contents else id(value)
        if (not isinstance(attributes, dict) or not attributes) and not slots:
            return identity
        contents = list(attributes.items()) if isinstance(attributes, dict) else []
        contents += [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
        return identity, tuple([(name, self.of(item, depth + 1)) for name, item in contents])

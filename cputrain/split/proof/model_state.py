"""Copies everything that a model can reach, and tells what a forward has changed of it.

A proof runs on copies, so nothing of it stays where a model is refused: tensors, random
generators, lists, dicts and objects in attributes and closures are copied, however deep they lie.
`snapshot` holds the values of all of them, and `changes` names the attribute that differs.
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
"""What has no state, or none that can be copied."""

SIMPLE = frozenset({int, float, bool, str, bytes, type(None), type})
"""The most frequent of them."""

VARIABLES = (int, float, list, dict, set, deque, torch.Tensor, ContextVar, threading.local)
"""Types of global variables and class attributes that are looked at."""

HOOK_TABLES = frozenset({
    "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook", "_forward_hooks",
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
    "_parameters", "_buffers", "_modules", "_version", "call_super_init",
})  # fmt: skip
"""Of a module, what `structure` does not look at: other checks do."""

MAX_DEPTH = 400
MAX_VALUES = 200_000
"""Of a snapshot; a model that has more is not divided."""

OUTLINED_DEPTH = 12
"""How deep an outline looks into containers; what lies deeper counts by its identity."""

MAX_OUTLINED = 10_000
"""Containers and objects that an outline looks into; others count by their identity."""


class TooManyValuesError(ValueError):
    """A model has more values, or deeper ones, than a snapshot looks at."""


class StateCopier:
    """Copies a model with all that can be reached from it."""

    def __init__(
        self,
        convert: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
        read: ReadNames | None = None,
    ) -> None:
        """`convert` makes the copy of each tensor, of another type or on another device say.

        Of modules, attributes that are not `read` stay the same objects in the copy.
        """
        self._convert = convert
        self._read = read
        self._memo: dict[int, Any] = {}
        self._alive: list[Any] = []

    def put(self, value: Any, copied: Any) -> None:
        """Say what stands for a value in the copy."""
        self._alive.append(value)
        self._memo[id(value)] = copied

    def copy(self, value: Any) -> Any:
        """Return a copy; what has no state, or cannot be copied, is the same object."""
        if isinstance(value, ATOMS):
            return value
        key = id(value)
        if key in self._memo:
            return self._memo[key]
        self._alive.append(value)
        return self._copied(value, key)

    def _copied(self, value: Any, key: int) -> Any:
        made: Any
        if isinstance(value, torch.Tensor):
            self._memo[key] = made = self._tensor(value)
            return made
        if isinstance(value, nn.Module):
            return self._module(value, key)
        if isinstance(value, torch.Generator):
            made = torch.Generator(value.device)
            made.set_state(value.get_state())
            self._memo[key] = made
            return made
        if isinstance(value, FunctionType):
            return self._function(value, key)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.copy(value.__self__))
        if type(value) is partial:
            args = [self.copy(one) for one in value.args]
            return partial(self.copy(value.func), *args, **self._dict(value.keywords))
        if isinstance(value, dict):
            return self._mapping(value, key)
        if isinstance(value, list | deque):
            made = self._memo[key] = copy.copy(value)
            for number, one in enumerate(value):
                made[number] = self.copy(one)
            self._attributes(value, made)
            return made
        if isinstance(value, tuple):
            inside = [self.copy(one) for one in value]
            if all(one is other for one, other in zip(inside, value, strict=True)):
                return value
            return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
        if isinstance(value, set | frozenset):
            made = self._memo[key] = type(value)(self.copy(one) for one in value)
            return made
        return self._object(value, key)

    def _dict(self, value: dict[str, Any]) -> dict[str, Any]:
        return {name: self.copy(one) for name, one in value.items()}

    def _mapping(self, value: dict[Any, Any], key: int) -> Any:
        made: Any
        if type(value) in (dict, OrderedDict):
            made = type(value)()
        elif isinstance(value, defaultdict):
            made = defaultdict(value.default_factory)
        else:
            made = copy.copy(value)
        self._memo[key] = made
        # a subclass may do something else with an item; an OrderedDict has its order beside
        put: Any = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
        for name, one in value.items():
            put(made, self.copy(name), self.copy(one))
        self._attributes(value, made)
        return made

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.inference_mode(False):
            made = self._convert(value.detach())
            if made is value or made.data_ptr() == value.data_ptr() != 0:
                made = made.clone()
        if isinstance(value, nn.Parameter):
            kept = nn.Parameter(made, value.requires_grad)
            kept.__dict__.update({k: v for k, v in value.__dict__.items() if not callable(v)})
            return kept
        return made.requires_grad_(value.requires_grad and made.is_floating_point())

    def _module(self, module: nn.Module, key: int) -> nn.Module:
        if isinstance(module, torch.jit.ScriptModule):
            self._memo[key] = module
            return module
        made = object.__new__(type(module))
        self._memo[key] = made
        held = made.__dict__
        for name, value in module.__dict__.items():
            is_read = self._read is None or self._read.has(type(module), name)
            empty = name.endswith("_hooks") and not value
            held[name] = self.copy(value) if is_read and not empty else value
        if isinstance(made, nn.RNNBase):
            weights = [held["_parameters"].get(name) for name in made._flat_weights_names]
            held["_flat_weights"] = weights
            held["_flat_weight_refs"] = [None if one is None else ref(one) for one in weights]
            # on a GPU they are put side by side in each call, of which torch warns
            warnings.filterwarnings("ignore", message="RNN module weights are not part of")
            made.flatten_parameters()
        return made

    def _function(self, function: FunctionType, key: int) -> FunctionType:
        """Functions keep state in closures and defaults."""
        cells = function.__closure__ or ()
        if not cells and not function.__defaults__ and not function.__kwdefaults__:
            return function
        closure = tuple(CellType() for _ in cells)
        made = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, closure or None
        )
        self._memo[key] = made  # a function may be in its own closure
        for cell, copied in zip(cells, closure, strict=True):
            with suppress(ValueError):  # an empty one
                copied.cell_contents = self.copy(cell.cell_contents)
        made.__defaults__ = self.copy(function.__defaults__)
        made.__kwdefaults__ = self.copy(function.__kwdefaults__)
        made.__dict__.update(function.__dict__)
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        return made

    def _object(self, value: Any, key: int) -> Any:
        held = getattr(value, "__dict__", None)
        new: Any = type(value).__new__
        if held is not None and new is object.__new__:
            made = self._memo[key] = object.__new__(type(value))
            for name, one in held.items():
                made.__dict__[name] = self.copy(one)
            for name in _slots(type(value)):  # type: ignore[arg-type]
                if hasattr(value, name):
                    object.__setattr__(made, name, self.copy(getattr(value, name)))
            return made
        try:
            made = copy.deepcopy(value, self._memo)
        except Exception:
            made = value
        self._memo[key] = made
        return made

    def _attributes(self, value: Any, made: Any) -> None:
        """Copy what an instance of a subclass has beside its items."""
        if type(value).__dictoffset__ and getattr(value, "__dict__", None):
            made.__dict__.update(self._dict(value.__dict__))


@cache
def _slots(kind: Hashable) -> list[str]:
    found: list[str] = []
    for one in kind.__mro__:  # type: ignore[attr-defined]
        slots = one.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def reachable(value: Any, read: ReadNames | None = None) -> Iterator[tuple[str, Any]]:
    """Go through all values that can be reached, with a name for each; every object once.

    Of modules, attributes that are not `read` are left out.
    """
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    count = 0
    while waiting:
        where, one, depth = waiting.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise TooManyValuesError(
                "it has too many values to tell which of them a forward changes"
            )
        if type(one) in SIMPLE or isinstance(one, ATOMS):
            yield where, one
            continue
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield where, one
        if not isinstance(one, torch.Tensor | torch.Generator):
            waiting += [(inner, each, depth + 1) for inner, each in _inside(where, one, read)]


def _inside(where: str, value: Any, read: ReadNames | None) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        for name, one in value.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                yield from ((_join(where, inner), each) for inner, each in one.items())
            elif read is not None and not read.has(type(value), name):
                continue
            elif name not in HOOK_TABLES or one:
                yield _join(where, name), one
        return
    if isinstance(value, dict):
        yield from ((f"{where}[{name!r}]", one) for name, one in list(value.items()))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{where}[{number}]", one) for number, one in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((where, one) for one in value)
    elif isinstance(value, FunctionType):
        for number, cell in enumerate(value.__closure__ or ()):
            yield f"{where} ({value.__code__.co_freevars[number]})", _content(cell)
        yield from ((where, one) for one in value.__defaults__ or ())
        yield from ((where, one) for one in (value.__kwdefaults__ or {}).values())
        return
    elif isinstance(value, MethodType):
        yield where, value.__self__
        return
    elif type(value) is partial:
        yield from ((where, one) for one in (value.func, *value.args, *value.keywords.values()))
        return
    elif isinstance(value, ContextVar):
        yield where, value.get(None)
        return
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        yield from ((_join(where, str(name)), one) for name, one in list(held.items()))
    for name in _slots(type(value)):  # type: ignore[arg-type]
        if hasattr(value, name):
            yield _join(where, name), getattr(value, name)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def snapshot(value: Any, read: ReadNames | None = None) -> dict[str, Any]:
    """Return every value that can be reached, by name, as something that can be compared."""
    found: dict[str, Any] = {}
    for name, one in reachable(value, read):
        key = name
        while key in found:
            key += "'"
        found[key] = _fingerprint(one)
    return found


def _fingerprint(value: Any) -> Any:
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
    return repr(key) if isinstance(key, str | int | float | bytes | bool | None) else str(id(key))


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the values that differ, are new, or are gone."""
    return [name for name in {**before, **after} if before.get(name, _MISSING) != after.get(name)]


_MISSING = object()


def uncopied(value: Any, read: ReadNames) -> str:
    """Return what can be reached of which no replica can have a copy, if anything, with its name.

    An iterator cannot be read without being advanced, and a `threading.local` is empty in the
    replicas' threads.
    """
    for name, one in reachable(value, read):
        if isinstance(one, Iterator | IOBase) and not isinstance(one, torch.Generator):
            return f"an iterator ({name.removeprefix('[0].')})"
        if isinstance(one, threading.local):
            return f"a threading.local ({name.removeprefix('[0].')})"
    return ""


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return all modules, each once: those of `model.modules()`, in less time."""
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [one for one in module._modules.values() if one is not None]
    return list(found.values())


def structure(model: nn.Module, read: ReadNames) -> tuple[Any, ...]:
    """Return what a proof is valid for: modules, flags, numbers, functions; by value or identity.

    Values of parameters and buffers are left out: they may be others in each call.
    """
    found: list[Any] = []
    kinds: dict[type, None] = {}
    outline = _Outline()
    for module in modules_of(model):
        found.append(id(module))
        kinds[type(module)] = None
        for value in read.of(module):
            found.append(value if type(value) in SIMPLE else outline.of(value))
        for parameter in module._parameters.values():
            if parameter is not None:
                found.append((parameter.requires_grad, parameter.dim()))
    for kind in kinds:
        found.append((_class_outline(kind, read), _globals_outline(kind)))
    return tuple(found)


def _class_outline(kind: type, read: ReadNames) -> tuple[Any, ...]:
    """Return the attributes of a script's class and its bases, for a method or flag set on it."""
    own = takewhile(lambda one: one is not nn.Module, kind.__mro__)
    return tuple(
        (id(one), *[_Outline().of(value) for name, value in list(one.__dict__.items())
                    if not name.startswith("__") and read.has(kind, name)])
        for one in own if not one.__module__.startswith("torch.")
    )  # fmt: skip


def outline_of(model: nn.Module, read: ReadNames) -> dict[str, Any]:
    """Return the same by name."""
    found = {
        _join(where, name): _Outline().of(value)
        for where, module in model.named_modules()
        for name, value in module.__dict__.items()
        if name not in HOOK_TABLES and read.has(type(module), name)
    }
    for where, module in model.named_modules():
        kind = type(module)
        found[where or "the model"] = id(module), _class_outline(kind, read), _globals_outline(kind)
    for name, parameter in model.named_parameters():
        found[f"{name}.requires_grad"] = parameter.requires_grad
    return found


def objects_of(model: nn.Module) -> list[Any]:
    """Return what `structure` names by its id: while it is held, no other object has that id."""
    return [
        value
        for module in model.modules()
        for value in (*module.__dict__.values(), getattr(type(module), "forward", None))
        if not isinstance(value, torch.Tensor) and type(value) not in SIMPLE
    ]


class Surroundings:
    """Global variables, class attributes and defaults that methods of a model's classes name."""

    def __init__(self, model: nn.Module) -> None:
        """Raises CannotSplitError where one of them is empty in other threads."""
        self._variables: list[tuple[Any, str, Any, Any]] = []
        for kind in dict.fromkeys(map(type, model.modules())):
            for place, name in _names_read(kind, getattr(kind, "forward", None)):
                value = _value_in(place, name)
                if isinstance(value, threading.local):
                    raise CannotSplitError(f"it reads a threading.local ({name})")
                self._variables.append((place, name, value, StateCopier().copy(value)))
        self._before = self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        return snapshot([_value_in(place, name) for place, name, _, _ in self._variables])

    def put_back(self) -> str:
        """Have them as they were; return the name of one that was changed, if any was."""
        differ = changes(self._before, self._snapshot())
        if not differ:
            return ""
        for place, name, value, copied in self._variables:
            if _value_in(place, name) is not value:
                _put_in(place, name, value)
            _refill(value, copied)
        place, name, _, _ = self._variables[int(differ[0][1:].partition("]")[0])]
        if isinstance(place, dict):
            return f"the global variable {name}"
        where: str = place.__qualname__
        return f"the defaults of {where}" if isinstance(place, FunctionType) else f"{where}.{name}"


def _value_in(place: Any, name: str) -> Any:
    """Return the value of a variable; of a context variable, what it is in this thread."""
    value = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
    return value.get(None) if isinstance(value, ContextVar) else value


def _put_in(place: Any, name: str, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        setattr(place, name, value)


def _refill(value: Any, copied: Any) -> None:
    """Give a container or tensor the contents of its copy."""
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
        for one, other in zip(value, copied, strict=True):
            _refill(one, other)


def _globals_outline(kind: type) -> tuple[Any, ...]:
    """Return the numbers and flags of the script that a class reads, by value."""
    read = _names_read(kind, getattr(kind, "forward", None))
    return tuple([_Outline().of(_value_in(place, name), OUTLINED_DEPTH) for place, name in read])


@cache
def _names_read(kind: Hashable, _forward: Hashable) -> tuple[tuple[Any, str], ...]:
    """Return where variables are that may change, and their names, for a class of modules."""
    found: dict[tuple[int, str], tuple[Any, str]] = {}
    for one in kind.__mro__:  # type: ignore[attr-defined]
        if one.__module__.startswith("torch."):
            break
        for value in vars(one).values():
            if isinstance(value, FunctionType):
                places = value.__globals__
                for used in value.__code__.co_names:
                    if isinstance(places.get(used), VARIABLES):
                        found[id(places), used] = places, used
                    elif isinstance(places.get(used), type):
                        found.update(_variables_of(places[used]))
                if value.__defaults__:
                    found[id(value), "__defaults__"] = value, "__defaults__"
        found.update(_variables_of(one))
    return tuple(found.values())


def _variables_of(kind: type) -> dict[tuple[int, str], tuple[Any, str]]:
    """Return the attributes of a script's class that may change."""
    if kind.__module__.partition(".")[0] in ("torch", "builtins", "collections", "cputrain"):
        return {}
    return {
        (id(kind), name): (kind, name)
        for name, value in vars(kind).items()
        if isinstance(value, VARIABLES) and not name.startswith("__")
    }


def outline(value: Any) -> Any:
    """Return what a proof is valid for of an argument: by value, or by type and contents."""
    return _Outline(by_contents=True).of(value)


class _Outline:
    """Goes through what a value holds; an object that is met once more counts by its number."""

    def __init__(self, *, by_contents: bool = False) -> None:
        self._by_contents = by_contents
        self._met: dict[int, int] = {}

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return a value's contents, as something that can be compared."""
        kind = type(value)  # (an object may compute its __class__, as isinstance asks for it)
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
        kind = type(value)
        if id(value) in self._met:
            return "again", self._met[id(value)]
        number = self._met[id(value)] = len(self._met)
        if issubclass(kind, nn.Module) or depth > OUTLINED_DEPTH or number > MAX_OUTLINED:
            return kind if self._by_contents else id(value)
        if issubclass(kind, dict):
            return kind, tuple(
                [(_name(key), self.of(one, depth + 1)) for key, one in value.items()]
            )
        if issubclass(kind, list | tuple | deque):
            return kind, tuple([self.of(one, depth + 1) for one in value])
        return self._of_object(value, depth)

    def _of_object(self, value: Any, depth: int) -> Any:
        kind = type(value)
        held = getattr(value, "__dict__", None)
        slots = _slots(kind)  # type: ignore[arg-type]
        identity = kind if self._by_contents else id(value)
        if (not isinstance(held, dict) or not held) and not slots:
            return identity
        contents = list(held.items()) if isinstance(held, dict) else []
        contents += [(name, getattr(value, name)) for name in slots if hasattr(value, name)]
        return identity, tuple([(name, self.of(one, depth + 1)) for name, one in contents])

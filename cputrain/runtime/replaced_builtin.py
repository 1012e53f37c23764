"""Replace functions in C of torch by what a script cannot tell from them.

A function in Python would be bound as a method where a class has it as an attribute, would be no
key of a table that has the original, and would be seen in tracebacks and graphs.
"""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING

import torch
from torch.overrides import handle_torch_function, has_torch_function

from cputrain.runtime.patching import PACKAGE, Patch, never_compile, uncounted, without_leading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    Compute: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]

OVERRIDES = os.path.abspath(torch.overrides.__file__)
"""File of torch that calls what overrides functions; for a function in C, C code does."""

_tracing_state = torch._C._get_tracing_state


class ReplacedBuiltin:
    """A function in C of torch, replaced.

    It equals the original, hashes and pickles as the original does, and has its attributes. What
    overrides functions of torch, a subclass or a mode, is called first, as the original does.
    torch.compile takes it for the original.

    Args:
        original: The function, which may be replaced already.
        compute: Returns what the original would, or None if that should be called. It is given the
            positional arguments as a tuple and the others as a dictionary.
    """

    def __init__(self, original: Any, compute: Compute) -> None:
        self._original, self._compute = original, compute
        self._builtin: Any = original._builtin if type(original) is type(self) else original
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):  # which classes have
            setattr(self, name, getattr(original, name, None))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        relevant = (*args, *kwargs.values()) if kwargs else args
        is_overridden = has_torch_function(relevant)
        if not is_overridden and _tracing_state() is None:  # a trace has torch's operators
            result = self._compute(args, kwargs)
            if result is not None:
                return result
        try:
            if is_overridden:
                return handle_torch_function(self, relevant, *args, **kwargs)
            return self._original(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_leading(error.__traceback__, (PACKAGE, OVERRIDES))
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builtin, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return type(self._builtin)

    def __eq__(self, other: object) -> bool:
        return self._builtin is (other._builtin if type(other) is type(self) else other)

    def __hash__(self) -> int:
        return hash(self._builtin)

    def __repr__(self) -> str:
        return repr(self._builtin)

    def __reduce__(self) -> Any:
        return self._builtin.__reduce__()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _: object) -> Any:
        return self


class ReplacedMethod(ReplacedBuiltin):
    """A method in C of torch.Tensor, replaced."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def replace(places: Iterable[Any], name: str, compute: Compute) -> list[Patch]:
    """Replace a function in C, or a method, in all places that have it.

    The places have one replacement, since torch compares functions by identity, too.
    """
    replacements: dict[int, ReplacedBuiltin] = {}
    patches = []
    for place in places:
        original = getattr(place, name)
        kind = ReplacedMethod if place is torch.Tensor else ReplacedBuiltin
        replacement = replacements.setdefault(id(original), kind(original, compute))
        patches.append(Patch(place, name, replacement))
    return patches


# by this name torch knows functions whose compiled graphs it may keep
ReplacedBuiltin.__name__ = ReplacedBuiltin.__qualname__ = "builtin_function_or_method"
ReplacedMethod.__name__ = ReplacedMethod.__qualname__ = "method_descriptor"
never_compile(uncounted(ReplacedBuiltin.__call__))

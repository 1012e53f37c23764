"""What code of a script does beside returning a value: looked for while it is traced."""

from __future__ import annotations

import sys
import sysconfig
from contextlib import contextmanager
from dis import get_instructions
from functools import cache
from os.path import dirname, join
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import FunctionCtx

from cputrain.runtime.patching import PACKAGE
from cputrain.step.model_tensors import CompileError
from cputrain.step.script_code import CONSTRUCTORS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, FunctionType
    from typing import Any

SITE = tuple({join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
"""Folders of installed packages."""

STANDARD = join(sysconfig.get_path("stdlib"), "")
"""Folder of the standard library; those of packages may be in it."""

TORCH = join(dirname(torch.__file__), "")

LIBRARIES = (
    PACKAGE, TORCH, "<frozen", "<eval_with_key",
    *(
        join(folder, name, "")
        for folder in SITE
        for name in ("numpy", "sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec")
    ),
    *(join(folder, "typing_extensions.py") for folder in SITE),
)  # fmt: skip
"""Beginnings of the file names of code whose effects have known names: torch, and what it needs."""

HOOK_CALLERS = (
    "<frozen importlib", *(join(STANDARD, name) for name in ("importlib", "logging", "warnings")),
)  # fmt: skip
"""Beginnings of the file names of code that calls hooks, which are no part of a forward."""

EFFECTS = frozenset({
    "print", "open", "input", "exec", "eval", "next", "write", "writelines", "flush", "debug",
    "info", "warning", "error", "exception", "critical", "sleep", "time", "time_ns",
    "perf_counter", "perf_counter_ns", "monotonic", "now", "urandom", "put", "send", "add_scalar",
    "add_histogram", "register_hook", "retain_grad", "register_buffer", "register_parameter",
    "setattr", "delattr", "update", "setdefault", "popitem", "record_function", "pprint",
})  # fmt: skip
"""Names of functions that do more than return a value, or return another one each time."""

PARTS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
"""Names of functions that are parts of an expression."""

STORES = {
    "STORE_ATTR": "sets an attribute", "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "sets a global variable", "DELETE_GLOBAL": "deletes a global variable",
    "YIELD_VALUE": "is a generator",
}  # fmt: skip


class _EffectFound(BaseException):
    """A function of the script does more than return a value; no script is to catch it."""


@contextmanager
def without_effects() -> Iterator[None]:
    """Raise CompileError where code of the script would print, set an attribute or the like.

    It is raised before such a function begins. Whether it is one is found by names and
    instructions, so that it may never come to do it. It is raised beside a profiler, too.
    """
    if sys.getprofile() is not None:
        raise CompileError("a profiler is running")
    known: set[CodeType] = set()
    effects: list[str] = []
    ignored: FrameType | None = None

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal ignored
        code, effect = frame.f_code, ""
        if ignored is not None:
            if event == "return" and frame is ignored:
                ignored = None
        elif event == "c_call":
            effect = "calls print" if argument is print else ""
        elif event == "call" and not _is_of_library(code.co_filename):
            if _is_hook(frame):
                ignored = frame
            elif code not in known:
                known.add(code)
                effect = _effect_of(frame)
        if effect:
            effects.append(f"{code.co_qualname} {effect}")
            raise _EffectFound

    sys.setprofile(look)
    try:
        yield
    except _EffectFound:
        pass
    finally:
        sys.setprofile(None)
    if effects:
        raise CompileError(effects[0])


@cache
def _is_of_library(path: str) -> bool:
    return path.startswith(LIBRARIES) or (path.startswith(STANDARD) and not path.startswith(SITE))


def _is_hook(frame: FrameType) -> bool:
    caller = frame.f_back
    return frame.f_code.co_name == "__del__" or (
        caller is not None and caller.f_code.co_filename.startswith(HOOK_CALLERS)
    )


def effect_of(function: FunctionType) -> str:
    """Return what a function, or one within it, may do beside returning a value; "" if nothing."""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        effect = _effect_in(code)
        if effect:
            return f"{function.__qualname__} {effect}"
        waiting += [each for each in code.co_consts if hasattr(each, "co_names")]
    return ""


def _effect_of(frame: FrameType) -> str:
    """Return what the function of a frame does beside returning a value; "" if nothing."""
    code = frame.f_code
    receiver = code.co_varnames[:1]
    value = frame.f_locals.get(receiver[0]) if code.co_argcount else None
    is_its_own = code.co_name in CONSTRUCTORS or isinstance(value, FunctionCtx)
    return _effect_in(code, receiver if is_its_own else ())


def _effect_in(code: CodeType, receiver: tuple[str, ...] = ()) -> str:
    """Return what code does beside returning a value; "" if nothing.

    Args:
        code: The code.
        receiver: The variable whose attributes it may set: an object that is made meanwhile.
    """
    for name in code.co_names:
        if name in EFFECTS:
            return f"calls {name}"
    if code.co_name in PARTS:
        return ""
    before = None
    for instruction in get_instructions(code):
        if instruction.opname in STORES:
            is_of_receiver = before is not None and before.argval in receiver
            if instruction.opname != "STORE_ATTR" or not is_of_receiver:
                return STORES[instruction.opname]
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            return "sets a variable of an enclosing function"
        before = instruction
    return ""

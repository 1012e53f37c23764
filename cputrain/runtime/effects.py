"""What code of a script does beside returning a value: looked for while it is called on copies."""

from __future__ import annotations

import gc
import sys
import sysconfig
from collections import deque
from contextlib import contextmanager
from dis import get_instructions
from functools import cache
from io import IOBase
from os.path import dirname, join
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import FunctionCtx

from cputrain.runtime.patching import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType, FunctionType
    from typing import Any

SITE_FOLDERS = tuple({join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
"""Folders of installed packages."""

STANDARD_FOLDER = join(sysconfig.get_path("stdlib"), "")
"""Folder of the standard library; those of packages may be in it."""

TORCH_FOLDER = join(dirname(torch.__file__), "")
"""Folder of torch."""

LIBRARY_PATHS = (
    PACKAGE, TORCH_FOLDER, "<frozen", "<eval_with_key",
    *(
        join(folder, name, "")
        for folder in SITE_FOLDERS
        for name in ("numpy", "sympy", "mpmath", "networkx", "jinja2", "filelock", "fsspec")
    ),
    *(join(folder, "typing_extensions.py") for folder in SITE_FOLDERS),
)  # fmt: skip
"""Beginnings of the file names of code whose effects have known names: torch, and what it needs."""

LOGGING = join(STANDARD_FOLDER, "logging")

HOOK_CALLERS = (
    "<frozen importlib", LOGGING,
    *(join(STANDARD_FOLDER, name) for name in ("importlib", "warnings", "weakref")),
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

OUTPUT = frozenset({
    "print", "pprint", "input", "add_scalar", "add_scalars", "add_histogram", "add_image",
})  # fmt: skip
"""Names of functions that write or read, and change no value of the script."""

PARTS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
"""Names of functions that are parts of an expression."""

STORES = {
    "STORE_ATTR": "sets an attribute", "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "sets a global variable", "DELETE_GLOBAL": "deletes a global variable",
    "YIELD_VALUE": "is a generator",
}  # fmt: skip


CONTAINERS = (list, dict, set, deque)

CHANGES = frozenset({
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft",
    "remove", "reverse", "sort",
})  # fmt: skip
"""Names of methods that change containers, beside those of `EFFECTS`."""

CONSTRUCTORS = frozenset({"__new__", "__init__", "__post_init__"})
"""Methods that are called where a class is."""

LOGGERS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "log"})
"""Functions of the module logging that write messages."""


class EffectError(Exception):
    """A function of the script does more than return a value; the message says which, and what."""


class _EffectFound(BaseException):
    """What ends the call of such a function; no script is to catch it."""


@contextmanager
def without_effects(*, is_output_only: bool = False) -> Iterator[None]:
    """Raise EffectError where code of the script would print, set an attribute or the like.

    It is raised before such a function begins. Whether it is one is found by names and
    instructions, so that it may never come to do it. It is raised beside a profiler, too.

    Args:
        is_output_only: Whether only calls that write or read count, and no change of a value.
    """
    if sys.getprofile() is not None:
        raise EffectError("a profiler of Python functions is running")
    effects: list[str] = []

    def end(effect: str) -> None:
        effects.append(effect)
        raise _EffectFound

    sys.setprofile(_Watch(end, is_output_only=is_output_only))
    try:
        yield
    except _EffectFound:
        pass
    finally:
        sys.setprofile(None)
    if effects:
        raise EffectError(effects[0])


@contextmanager
def effects_listed() -> Iterator[list[str]]:
    """List effects of the script's code while it runs; beside a profiler there is one at once."""
    effects: list[str] = []
    if sys.getprofile() is not None:
        yield ["a profiler of Python functions is running"]
        return
    sys.setprofile(_Watch(effects.append, lists_all=True))
    try:
        yield effects
    finally:
        sys.setprofile(None)


class _Watch:
    """Profile function that looks at each function of the script as it is called.

    Args:
        tell: Is called with each effect.
        is_output_only: Whether only calls that write or read count, and no change of a value.
        lists_all: Whether effects are told in each call, and not once, and changes of global and
            enclosing containers are among them.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        is_output_only: bool = False,
        lists_all: bool = False,
    ) -> None:
        self._tell, self._is_output_only, self._lists_all = tell, is_output_only, lists_all
        self._names = OUTPUT if is_output_only else EFFECTS
        self._known: dict[CodeType, str] = {}
        # run at any time
        self._callbacks = {getattr(each, "__code__", None) for each in gc.callbacks}
        self._ignored: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code, effect = frame.f_code, ""
        if self._ignored is not None:
            if event == "return" and frame is self._ignored:
                self._ignored = None
        elif event == "c_call":
            effect = _effect_of_builtin(argument, frame)
        elif event == "call" and _is_import(code):
            self._ignored = frame  # it is done once, and not in each forward
        elif event == "call" and not _is_of_library(code.co_filename):
            if _is_hook(frame) or code in self._callbacks:
                self._ignored = frame
            elif code not in self._known:
                effect = _effect_of_frame(frame, self._names, is_output_only=self._is_output_only)
                if not effect and self._lists_all:
                    effect = _change_of_container(frame)
                self._known[code] = effect
            elif self._lists_all:
                effect = self._known[code]
        elif event == "call" and code.co_name in LOGGERS and _logs(frame):
            code, effect = frame.f_back.f_code, f"calls {code.co_name}"  # type: ignore[union-attr]
        if effect:
            self._tell(f"{code.co_qualname} {effect}")


def effect_of(function: FunctionType, ignored: frozenset[str] = frozenset()) -> str:
    """Return what a function, or one within it, may do beside returning a value; "" if nothing.

    Args:
        function: The function.
        ignored: Names of functions that it may call, and of instructions that may store a value.
    """
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        effect = _call_in(code, EFFECTS - ignored) or _store_in(code, ignored=ignored)
        if effect:
            return f"{function.__qualname__} {effect}"
        waiting += [each for each in code.co_consts if hasattr(each, "co_names")]
    return ""


@cache
def _is_of_library(path: str) -> bool:
    return path.startswith(LIBRARY_PATHS) or (
        path.startswith(STANDARD_FOLDER) and not path.startswith(SITE_FOLDERS)
    )


def _is_import(code: CodeType) -> bool:
    return code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib")


def _is_hook(frame: FrameType) -> bool:
    caller = frame.f_back
    return frame.f_code.co_name == "__del__" or (
        caller is not None and caller.f_code.co_filename.startswith(HOOK_CALLERS)
    )


def _effect_of_builtin(function: Any, frame: FrameType) -> str:
    """Return what a builtin does that code of the script calls; "" if nothing but return."""
    if function is print or function is input:
        return f"calls {function.__name__}"
    if function.__name__ in {"write", "writelines"} and isinstance(function.__self__, IOBase):
        return "" if _is_of_library(frame.f_code.co_filename) else "writes to a file"
    return ""


def _logs(frame: FrameType) -> bool:
    """Return whether code of the script calls a function of the module logging."""
    return (
        frame.f_code.co_filename.startswith(LOGGING)
        and frame.f_back is not None
        and not _is_of_library(frame.f_back.f_code.co_filename)
    )


def _effect_of_frame(frame: FrameType, names: frozenset[str], *, is_output_only: bool) -> str:
    """Return what the function of a frame does beside returning a value; "" if nothing."""
    code = frame.f_code
    effect = _call_in(code, names)
    if effect or is_output_only:
        return effect
    receiver = code.co_varnames[:1]
    value = frame.f_locals.get(receiver[0]) if code.co_argcount else None
    is_its_own = code.co_name in CONSTRUCTORS or isinstance(value, FunctionCtx)
    return _store_in(code, receiver if is_its_own else ())


def _change_of_container(frame: FrameType) -> str:
    """Return which global or enclosing container a function may change; "" if none."""
    code = frame.f_code
    if CHANGES.isdisjoint(code.co_names) and not any(
        instruction.opname in {"STORE_SUBSCR", "DELETE_SUBSCR"}
        for instruction in get_instructions(code)
    ):
        return ""
    values = {name: frame.f_globals.get(name) for name in code.co_names}
    values |= {name: frame.f_locals.get(name) for name in code.co_freevars}
    return next(
        (f"may change {name}" for name, value in values.items() if isinstance(value, CONTAINERS)),
        "",
    )


def _call_in(code: CodeType, names: frozenset[str]) -> str:
    return next((f"calls {name}" for name in code.co_names if name in names), "")


def _store_in(
    code: CodeType, receiver: tuple[str, ...] = (), ignored: frozenset[str] = frozenset()
) -> str:
    """Return what code changes; "" if nothing.

    Args:
        code: The code.
        receiver: The variable whose attributes it may set: an object that is made meanwhile.
        ignored: Names of instructions that do not count.
    """
    if code.co_name in PARTS:
        return ""
    before = None
    for instruction in get_instructions(code):
        if instruction.opname in STORES and instruction.opname not in ignored:
            is_of_receiver = before is not None and before.argval in receiver
            if instruction.opname != "STORE_ATTR" or not is_of_receiver:
                return STORES[instruction.opname]
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            return "sets a variable of an enclosing function"
        before = instruction
    return ""

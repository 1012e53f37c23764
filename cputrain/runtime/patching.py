"""Monkeypatch functions of torch, reversibly, and invisibly to compilers, tracebacks and warnings.

torch.jit.script compiles the original operator or function in place of the replacement.
torch.compile, which compiles every frame that runs within what it is given, skips the frames of
replacements. Replacements appear in no traceback, and do not shift the line a warning points at.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

UNCOUNTED = " (no importlib._bootstrap)"
"""Suffix of file names of code that `warnings` skips: those of frames whose file name has both
words. There is no other way to hide a frame from `stacklevel`."""


class Patch:
    """A replacement of an attribute of a module or class, which `undo` removes again.

    Args:
        place: The module or class that holds the function.
        name: The attribute's name.
        ours: The replacement: a function, or a ReplacedBuiltin.
    """

    def __init__(self, place: Any, name: str, ours: Any) -> None:
        import torch.jit._builtins

        builtins: Any = torch.jit._builtins
        self._place, self._name, self._replacement = place, name, ours
        self._original = getattr(place, name)
        self._jit_builtins = builtins._get_builtin_table()
        operator = self._jit_builtins.get(id(self._original))
        if operator is not None:  # torch.jit finds builtins by identity
            self._jit_builtins[id(ours)] = operator
        else:  # (the function to replace may be a replacement already)
            scriptable = getattr(self._original, "__prepare_scriptable__", lambda: self._original)()
            ours.__prepare_scriptable__ = lambda: scriptable
        if isinstance(ours, FunctionType):
            skip_frames(uncounted(ours).__code__)
        setattr(place, name, ours)

    def undo(self) -> None:
        """Restore the original, unless something else has been assigned there since."""
        if getattr(self._place, self._name) is self._replacement:
            setattr(self._place, self._name, self._original)
            self._jit_builtins.pop(id(self._replacement), None)


def uncounted(function: Any) -> Any:
    """Make `warnings` skip the frames of a function; change it in place and return it."""
    code = function.__code__
    if not code.co_filename.endswith(UNCOUNTED):
        name = code.co_filename + UNCOUNTED
        function.__code__ = _warnings_codes.setdefault(code, code.replace(co_filename=name))
    return function


_warnings_codes: dict[CodeType, CodeType] = {}
"""Replacement code objects by original: closures over one code object share its replacement."""


def without_ours(error: BaseException) -> TracebackType | None:
    """Return the traceback of a caught error without its leading frames of this package.

    A bare `raise` then continues with it and adds no frame. An error raised by this package itself
    keeps every frame.
    """
    return without_leading(error.__traceback__, PACKAGE) or error.__traceback__


def without_leading(
    traceback: TracebackType | None, files: str | tuple[str, ...]
) -> TracebackType | None:
    """Return a traceback without its leading frames of files whose names begin so."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(files):
        traceback = traceback.tb_next
    return traceback


_skipped_codes: set[CodeType] = set()
_never_compiled_codes: set[CodeType] = set()


def skip_frames(*codes: CodeType) -> None:
    """Have torch.compile skip frames of these code objects, but not the frames that they call.

    Registered now, or once torch._dynamo is loaded: loading it takes a second, and most scripts
    do not need it.
    """
    _skipped_codes.update(codes)
    if "torch._dynamo" in sys.modules:
        register_skipped_code()


def never_compile(*functions: Any) -> None:
    """Have torch.compile skip frames of these functions and all they call, and inline none of them.

    For optimizer hooks: a compiled step has a graph break where it calls them, as it has for
    torch's own hooks.
    """
    for function in functions:
        function._torchdynamo_disable = True
        _never_compiled_codes.add(function.__code__)
    if "torch._dynamo" in sys.modules:
        register_skipped_code()


def register_skipped_code() -> None:
    """Register all skipped code objects with torch._dynamo, which is loaded."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    from torch._dynamo.eval_frame import skip_code

    while _skipped_codes:
        skip_code(_skipped_codes.pop())
    skip_recursively = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    while _never_compiled_codes:
        set_code_exec_strategy(_never_compiled_codes.pop(), skip_recursively)

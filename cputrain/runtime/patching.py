"""Puts a function of ours in the place of one of torch's, and torch's back.

Compilers are told: for torch.jit.script it is the operator or the function that it was, and
torch.compile, which compiles every frame that runs in what it is given, leaves frames of ours
alone. So are users: no function here shows in a traceback, nor shifts where a warning points.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

UNCOUNTED = " (no importlib._bootstrap)"
"""The module warnings skips frames whose file has both words in its name, and there is no other way
to have a frame skipped: `stacklevel` counts the script's own frames, as without us."""


class Patch:
    """Ours, in its place."""

    def __init__(self, place: Any, name: str, ours: Any) -> None:
        import torch.jit._builtins

        builtins: Any = torch.jit._builtins
        self._place, self._name, self._ours = place, name, ours
        self._own = getattr(place, name)
        self._table = builtins._get_builtin_table()
        operator = self._table.get(id(self._own))
        if operator is not None:  # it goes by identity, and cannot read ours
            self._table[id(ours)] = operator
        else:  # (what is there may be ours already, in the place of torch's)
            own = getattr(self._own, "__prepare_scriptable__", lambda: self._own)()
            ours.__prepare_scriptable__ = lambda: own
        pass_by(uncounted(ours).__code__)
        setattr(place, name, ours)

    def undo(self) -> None:
        """Put torch's back, unless somebody has put something else there since."""
        if getattr(self._place, self._name) is self._ours:
            setattr(self._place, self._name, self._own)
            self._table.pop(id(self._ours), None)


def uncounted(function: Any) -> Any:
    """Return the function, changed so that warnings do not count its frames."""
    code = function.__code__
    if not code.co_filename.endswith(UNCOUNTED):
        name = code.co_filename + UNCOUNTED
        function.__code__ = _codes.setdefault(code, code.replace(co_filename=name))
    return function


_codes: dict[CodeType, CodeType] = {}
"""By the code that it replaces: closures over one code share its replacement."""


def without_ours(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error that is caught here, less its first frames, which are ours.

    A `raise` without an argument goes on with it, and adds no frame. What is a fault of ours keeps
    every frame.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.tb_next
    return frame or error.__traceback__


_to_pass: set[CodeType] = set()
_never_compiled: set[CodeType] = set()


def pass_by(*codes: CodeType) -> None:
    """Have torch.compile leave frames of these alone, and look at those within; now, or once it
    is loaded: it takes a second to load, and most scripts do without."""
    _to_pass.update(codes)
    if "torch._dynamo" in sys.modules:
        have_them_passed()


def never_compile(*functions: Any) -> None:
    """Have torch.compile leave frames of these and all within alone, and inline none of them.

    Hooks of ours are such functions: a step that is compiled stops where it calls them, as it does
    in torch's own hooks, and goes on behind them.
    """
    for function in functions:
        function._torchdynamo_disable = True
        _never_compiled.add(function.__code__)
    if "torch._dynamo" in sys.modules:
        have_them_passed()


def have_them_passed() -> None:
    """torch._dynamo is loaded."""
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    from torch._dynamo.eval_frame import skip_code

    while _to_pass:
        skip_code(_to_pass.pop())
    skipped_with_all_within = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    while _never_compiled:
        set_code_exec_strategy(_never_compiled.pop(), skipped_with_all_within)

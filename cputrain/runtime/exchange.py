"""Puts a function of ours in the place of one of torch's, and torch's back.

Compilers are told: for torch.jit.script it is the operator or the function that it was, and
torch.compile, which compiles every frame that runs in what it is given, leaves frames of ours
alone.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any


class Exchanged:
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
        setattr(place, name, ours)
        pass_by(ours.__code__)

    def undo(self) -> None:
        """Put torch's back, unless somebody has put something else there since."""
        if getattr(self._place, self._name) is self._ours:
            setattr(self._place, self._name, self._own)
            self._table.pop(id(self._ours), None)


_to_pass: set[CodeType] = set()


def pass_by(*codes: CodeType) -> None:
    """Have torch.compile leave frames of these alone, and look at those within; now, or once it
    is loaded: it takes a second to load, and most scripts do without."""
    _to_pass.update(codes)
    if "torch._dynamo" in sys.modules:
        have_them_passed()


def call_uncompiled(function: Callable[[], None]) -> None:
    """Call a function of ours that torch.compile must not look into, nor into what it calls."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if hasattr(dynamo, "disable"):  # it may be loading at the moment
        function = dynamo.disable(function)
    function()


def have_them_passed() -> None:
    """torch._dynamo is loaded."""
    from torch._dynamo.eval_frame import skip_code

    while _to_pass:
        skip_code(_to_pass.pop())

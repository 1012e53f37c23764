"""What went wrong within a backward, until that is through. It is this thread's: see errors.py."""

from __future__ import annotations

import threading
from functools import wraps

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Pending(threading.local):
    def __init__(self) -> None:
        self.errors: list[BaseException] = []


_pending = _Pending()


def in_backward() -> bool:
    """Whether autograd asks."""
    return torch._C._current_graph_task_id() != -1


def keep(error: BaseException) -> None:
    """Raise this when the backward is through, if it is the first."""
    _pending.errors.append(error)


def taken() -> BaseException | None:
    """The first one; from now on there is none."""
    errors, _pending.errors = _pending.errors, []
    return errors[0] if errors else None


def kept(hook: Any) -> Any:
    """A hook of the user's, whose error waits as well."""

    @wraps(hook)
    def run(*given: Any) -> Any:
        try:
            return hook(*given)
        except BaseException as error:
            if not in_backward():
                raise
            keep(error)
            return None

    return run

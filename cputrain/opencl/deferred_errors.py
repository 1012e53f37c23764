"""Errors raised within a backward, kept by thread until it has finished: see errors.py."""

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
    """Return whether this thread is running a backward."""
    return torch._C._current_graph_task_id() != -1


def keep_error(error: BaseException) -> None:
    """Keep an error; the first one is raised when the backward has finished."""
    _pending.errors.append(error)


def take_first_error() -> BaseException | None:
    """Return the first kept error, or None, and drop all."""
    errors, _pending.errors = _pending.errors, []
    return errors[0] if errors else None


def keep_hook_errors(hook: Any) -> Any:
    """Wrap a user's hook so that its error within a backward is kept as well."""

    @wraps(hook)
    def run(*args: Any) -> Any:
        try:
            return hook(*args)
        except BaseException as error:
            if not in_backward():
                raise
            keep_error(error)
            return None

    return run

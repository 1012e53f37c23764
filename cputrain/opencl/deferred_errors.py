"""Exceptions within a backward: kept from torch's C++, and raised by the call of backward.

While autograd propagates an exception of a kernel or hook, it restores the device's streams, and
asks a device guard for its type. For a device written in Python, the guard is a Python object, and
a call with Python's error indicator set fails, which ends the process (torch 2.13). So the guard
takes the exception. Signal handlers, which may raise at any instruction, run after the backward.
"""

from __future__ import annotations

import ctypes
import threading
from functools import partial, wraps
from operator import getitem
from typing import Any

import torch

from cputrain.ipc import deferred_signals

_base: Any = torch._C._acc.DeviceGuard
_device_type: Any = torch._C._autograd.DeviceType.PrivateUse1

_raise_current_error = ctypes.pythonapi.PyErr_Occurred
"""Raises the error that is set, if any, as every function of ctypes.pythonapi does."""
_raise_current_error.restype = None


class _Kept(threading.local):
    error: BaseException | None = None
    """First error that the guard took in this thread's backward."""


_kept = _Kept()


class Guard(_base):  # type: ignore[misc]
    """Device guard whose `type_` torch calls a few times for each operator.

    Outside of a backward it runs no bytecode. It is a class attribute, as the lookup of an instance
    attribute clears the error indicator.
    """

    type_: Any = staticmethod(partial(getitem, (_device_type,), 0))


def _keep_current_error() -> Any:
    """Answer for `Guard.type_` within a backward: take the error that is set."""
    try:
        _raise_current_error()
    except BaseException as error:
        _kept.error = _kept.error or error
    return _device_type


class _KeepingErrors:
    """Context in which `Guard.type_` takes errors; may be entered by several threads."""

    def __init__(self) -> None:
        self._constant = vars(Guard)["type_"]
        self._num_open = 0

    def __enter__(self) -> None:
        self._num_open += 1
        Guard.type_ = staticmethod(_keep_current_error)

    def __exit__(self, *_: object) -> None:
        self._num_open -= 1
        if not self._num_open:
            Guard.type_ = self._constant


_keeping_errors = _KeepingErrors()


def raise_kept_errors(run_backward: Any) -> Any:
    """Wrap torch's function that runs a backward so that it raises the error that was kept."""

    @wraps(run_backward)
    def run(*args: Any, **options: Any) -> Any:
        outer_error, _kept.error = _kept.error, None
        try:
            # in this thread, so that a kept error belongs to this call
            with (
                torch.autograd.set_multithreading_enabled(False),
                deferred_signals(),
                _keeping_errors,
            ):
                result = run_backward(*args, **options)
        except BaseException as error:
            if _kept.error is None:
                raise
            # (a SystemError only shows that torch did not see the kept error)
            raise _kept.error from None if isinstance(error, SystemError) else error
        else:
            if _kept.error is not None:
                raise _kept.error
            return result
        finally:
            _kept.error = outer_error

    return run

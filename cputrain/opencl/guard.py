"""Device guard: torch's C++ reads its `type_` where an exception would end the process.

Outside of a backward `type_` runs no bytecode, so that no signal handler runs there. Within one,
autograd calls it while propagating a hook's exception, with Python's error indicator set, and a
call with that set fails. So the exception is kept until the backward has finished.
"""

from __future__ import annotations

import ctypes
from functools import partial
from operator import getitem
from typing import Any

import torch

from cputrain.opencl.deferred_errors import keep_error

_base: Any = torch._C._acc.DeviceGuard
_device_type: Any = torch._C._autograd.DeviceType.PrivateUse1

_raise_set = ctypes.pythonapi.PyErr_Occurred
"""Raises the current error, if any, as every function of ctypes.pythonapi does."""
_raise_set.restype = None


def _keep_current_error() -> Any:
    try:
        _raise_set()
    except BaseException as error:
        keep_error(error)
    return _device_type


class Guard(_base):  # type: ignore[misc]
    """Device guard whose `type_` torch calls a few times for each operator.

    It must be an attribute of the class: looking up one of an instance clears the error indicator.
    """

    type_: Any = staticmethod(partial(getitem, (_device_type,), 0))


class Backward:
    """Context of a backward, during which `Guard.type_` keeps errors; signals are deferred."""

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


BACKWARD = Backward()

"""The type of the device, which torch's C++ asks for where an exception would end the process.

Outside of a backward it is given without bytecode, so that no handler of a signal runs there.
Within one, autograd asks while it passes on an exception that a hook has raised, with Python's
error indicator set: a call with one fails. So the exception is kept until the backward has ended.
"""

from __future__ import annotations

import ctypes
from functools import partial
from operator import getitem
from typing import Any

import torch

from cputrain.opencl.deferred_errors import keep

_base: Any = torch._C._acc.DeviceGuard
_device_type: Any = torch._C._autograd.DeviceType.PrivateUse1

_raise_set = ctypes.pythonapi.PyErr_Occurred
"""Raises the error that is set, as every function of ctypes.pythonapi does."""
_raise_set.restype = None


def _keeping_errors() -> Any:
    try:
        _raise_set()
    except BaseException as error:
        keep(error)
    return _device_type


class Guard(_base):  # type: ignore[misc]
    """Asked for `type_` a few times by each operator.

    As an attribute of an instance it would not do: looking for one clears the error indicator.
    """

    type_: Any = staticmethod(partial(getitem, (_device_type,), 0))


class Backward:
    """Entered for a backward, in which handlers of signals are deferred."""

    def __init__(self) -> None:
        self._constant = vars(Guard)["type_"]
        self._num_open = 0

    def __enter__(self) -> None:
        self._num_open += 1
        Guard.type_ = staticmethod(_keeping_errors)

    def __exit__(self, *_: object) -> None:
        self._num_open -= 1
        if not self._num_open:
            Guard.type_ = self._constant


BACKWARD = Backward()

"""The table of OpenCL kernels by operator."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kernel = Callable[..., Any]

KERNELS: dict[Any, Kernel] = {}
"""Kernel by operator overload; it returns NotImplemented for arguments it does not support."""


def kernel(*operators: Any) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as the kernel of these operator overloads."""

    def register(function: Kernel) -> Kernel:
        for operator in operators:
            KERNELS[operator] = function
        return function

    return register

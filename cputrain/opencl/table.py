"""What runs an operator here: found by the operator."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Kernel = Callable[..., Any]

KERNELS: dict[Any, Kernel] = {}
"""By operator: returns what that returns, or NotImplemented where it cannot take the arguments."""


def kernel(*operators: Any) -> Callable[[Kernel], Kernel]:
    """This function is the kernel of these."""

    def register(function: Kernel) -> Kernel:
        for one in operators:
            KERNELS[one] = function
        return function

    return register

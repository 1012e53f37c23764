"""The loss of a step, or several in a tuple, list or dictionary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from cputrain.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Losses:
    """What a loss function returned: tensors whose gradients are taken together, and others.

    Args:
        value: A tensor, or tensors in tuples, lists and dictionaries. Those that need a gradient
            have one number each.
    """

    def __init__(self, value: Any) -> None:
        self.tensors, self._spec = tree_flatten(value)
        """All tensors."""
        if not self.tensors or not all(isinstance(each, Tensor) for each in self.tensors):
            raise ArgumentTypeError(
                "loss", "must return a tensor, or tensors in a tuple, list or dictionary",
                found=type(value).__name__,
            )  # fmt: skip

    @property
    def trained(self) -> list[Tensor]:
        """Return those that need a gradient."""
        return [tensor for tensor in self.tensors if tensor.requires_grad]

    def backward(self) -> None:
        """Compute the gradients of their sum."""
        torch.autograd.backward(self.trained or self.tensors[:1])

    def fill(self, tensors: Sequence[Tensor]) -> Any:
        """Return other tensors in the same containers."""
        return tree_unflatten(tensors, self._spec)

    def detached(self) -> Any:
        """Return the tensors without their graphs, in their containers."""
        return self.fill([tensor.detach() for tensor in self.tensors])

"""The tensors of a batch: out of tuples, lists and dictionaries, and back into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class BatchLayout:
    """What a compiled step assumes of its batch: containers, plain values, layouts of tensors.

    Args:
        inputs: Inputs of the model.
        targets: Further arguments of the loss.
    """

    def __init__(self, inputs: Any, targets: tuple[Any, ...]) -> None:
        leaves, self._spec = tree_flatten((inputs, targets))
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self._values = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._is_flat = all(isinstance(value, Tensor) for value in (inputs, *targets))
        self._layouts = [layout_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)]

    def tensors_of(self, inputs: Any, targets: tuple[Any, ...]) -> list[Tensor] | None:
        """Return the tensors of a batch; None if it has another layout."""
        if self._is_flat and type(inputs) is Tensor:
            tensors = [inputs, *targets]
        else:
            leaves, spec = tree_flatten((inputs, targets))
            if spec != self._spec or not all(
                isinstance(leaf, Tensor)
                if is_tensor
                else type(leaf) is type(value) and leaf == value
                for is_tensor, value, leaf in zip(
                    self._is_tensor, self._values, leaves, strict=True
                )
            ):
                return None
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len(tensors) != len(self._layouts):
            return None
        for tensor, (kind, shape, stride, dtype, device, requires_grad) in zip(
            tensors, self._layouts, strict=True
        ):
            if (
                type(tensor) is not kind
                or tensor.shape != shape
                or tensor.dtype is not dtype
                or tensor.stride() != stride
                or tensor.requires_grad is not requires_grad
                or tensor.device != device
            ):
                return None
        return tensors

    def fill(self, tensors: Sequence[Tensor]) -> tuple[Any, tuple[Any, ...]]:
        """Return inputs and targets of this layout with other tensors."""
        remaining = iter(tensors)
        leaves = [
            next(remaining) if is_tensor else value
            for is_tensor, value in zip(self._is_tensor, self._values, strict=True)
        ]
        inputs, targets = tree_unflatten(leaves, self._spec)
        return inputs, targets


def needs_gradient(*values: Any) -> bool:
    """Return whether a tensor among values needs a gradient, which a compiled step has not."""
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_flatten(values)[0])


def layout_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return what a compiled function assumes of a tensor."""
    return (
        type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device,
        tensor.requires_grad,
    )  # fmt: skip

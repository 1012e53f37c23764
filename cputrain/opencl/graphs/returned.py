"""What a model returns: tensors, plain values, and objects of installed packages that hold them."""

from __future__ import annotations

import io
import pickle
import sys
from typing import TYPE_CHECKING

from torch import nn
from torch.utils import _pytree as tree

from cputrain.opencl.tensor import OclTensor
from cputrain.runtime.effects import SITE_FOLDERS, STANDARD_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

PLAIN_TYPES = (int, float, str, bool, type(None))
"""Types of values that are returned as they are."""

UNKNOWN_OBJECT = "the model returns an object that cannot be made again"
"""Why a call is not replayed for which `Returned` raises an error."""


class Returned:
    """What a model has returned, to be made again with other tensors.

    Raises TypeError for an object that cannot be made again.

    Args:
        value: The value.
    """

    def __init__(self, value: Any) -> None:
        leaves, self._structure = tree.tree_flatten(value)
        self._tensors: dict[int, OclTensor] = {}
        self._parts = [self._part_of(leaf) for leaf in leaves]

    def take_tensors(self) -> list[OclTensor]:
        """Return the tensors in it, each once and in order, and let go of them."""
        tensors, self._tensors = list(self._tensors.values()), {}
        return tensors

    def with_tensors(self, tensors: Sequence[OclTensor]) -> Any:
        """Return the value with other tensors in place of its own."""
        return tree.tree_unflatten(
            [_rebuilt(part, tensors) for part in self._parts], self._structure
        )

    def _part_of(self, leaf: Any) -> Any:
        """Return the index of a tensor, a plain value in a tuple, or the bytes of an object."""
        if isinstance(leaf, OclTensor):
            return self.index_of(leaf)
        if isinstance(leaf, PLAIN_TYPES):
            return (leaf,)
        file = io.BytesIO()
        _ObjectPickler(file, self).dump(leaf)
        return file.getvalue()

    def index_of(self, tensor: OclTensor) -> int:
        """Return the index of a tensor, which is added if it is a new one."""
        self._tensors.setdefault(id(tensor), tensor)
        return list(self._tensors).index(id(tensor))


def _rebuilt(part: Any, tensors: Sequence[OclTensor]) -> Any:
    if type(part) is int:
        return tensors[part]
    return part[0] if type(part) is tuple else _ObjectUnpickler(io.BytesIO(part), tensors).load()


class _ObjectPickler(pickle.Pickler):
    """Writes an object of installed packages, such as a cache, without its tensors."""

    def __init__(self, file: io.BytesIO, returned: Returned) -> None:
        super().__init__(file)
        self._returned = returned

    def persistent_id(self, value: Any) -> int | None:
        """Return the index of a tensor; None for all else."""
        if isinstance(value, OclTensor):
            return self._returned.index_of(value)
        if isinstance(value, nn.Module) or not _is_installed(type(value)):
            raise TypeError(f"the model returns a {type(value).__name__}")
        return None


class _ObjectUnpickler(pickle.Unpickler):
    """Makes the object again, with other tensors."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[OclTensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, index: int) -> OclTensor:
        """Return the tensor of an index."""
        return self._tensors[index]


def _is_installed(kind: type) -> bool:
    """Return whether a class is Python's, or of an installed package."""
    module: ModuleType | None = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return kind.__module__ != "__main__" and (
        file is None or file.startswith((STANDARD_FOLDER, *SITE_FOLDERS))
    )

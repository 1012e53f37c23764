"""The models of a script that are trained, in the order in which they are first called."""

from __future__ import annotations

from cputrain.runtime.root_forward import root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any


MAX_MODELS = 64
"""Models that are kept."""


class TrainedModels:
    """Keeps each model that is called for training.

    Args:
        torch: The module.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._models: dict[int, Any] = {}
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._note, first=True)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def _note(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        if (
            self._torch.is_grad_enabled()
            and model.training
            and len(self._models) < MAX_MODELS
            and next(model.parameters(), None) is not None
        ):
            self._models.setdefault(id(model), model)
        return call(model, *args, **kwargs)

    def undo(self) -> None:
        """Keep no more models."""
        self._root_forward.remove(self._note)

"""Find the ends of whole steps: of the optimizer that steps least often, if there are several."""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NUM_OBSERVED = 10
"""Optimizer steps after which the optimizer that ends whole steps is chosen."""


class WholeSteps:
    """The optimizers of a script, and which of them ends a whole step."""

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_observed = 0
        self._last: weakref.ref[Any] | None = None
        """The optimizer that ends whole steps, once it is known."""

    def ends_with(self, optimizer: Any) -> bool:
        """Count a step of an optimizer; return whether a whole step ends with it."""
        is_gone = self._last is not None and self._last() is None
        if optimizer not in self._counts or is_gone:  # another part of the training
            self._counts = weakref.WeakKeyDictionary(dict.fromkeys([*self._counts, optimizer], 0))
            self._num_observed = 0
            self._last = None
        self._counts[optimizer] += 1
        self._num_observed += 1
        if self._last is None:
            if self._num_observed < NUM_OBSERVED or self._counts[optimizer] > min(
                count for count in self._counts.values() if count
            ):
                return False
            self._last = weakref.ref(optimizer)
        return self._last() is optimizer

    @property
    def is_known(self) -> bool:
        """Whether it is known which optimizer ends whole steps."""
        return self._last is not None and self._last() is not None

"""What this process is under now: what was decided, and what carries it out here.

`cputrain launch` and `cputrain.setup` both write it, so that neither does again what the other did.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.runtime.apply import Applied


class RuntimeState:
    """Values that hold, by policy, and the transforms behind them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        """What was decided and holds, as a plan carries it."""
        self.applied: dict[str, Applied] = {}
        """What carries it out in this process, in the order in which it was started."""
        self.thread_variables: dict[str, str] = {}
        """The variables of threads that the planned process had."""
        self.is_planned = False
        """Whether the plan was made for this very process, and not for one that started it."""
        self.launched = False
        """Whether `cputrain launch` started this process."""
        self.on_trial = False
        """Whether `cputrain tune` is measuring it: nothing may change its plan then."""


NOW = RuntimeState()

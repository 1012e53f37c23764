"""The state of this process: the decisions in effect, and the transforms that apply them.

`cputrain launch` and `cputrain.setup` share it, so that neither applies a decision twice.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.runtime.apply import Applied


class RuntimeState:
    """Values of decisions by policy, and the applied transforms."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        """Values of the decisions in effect, by policy, as a plan has them."""
        self.applied: dict[str, Applied] = {}
        """Applied transforms by policy, in the order of application."""
        self.thread_variables: dict[str, str] = {}
        """The environment variables for thread counts that the planned process had."""
        self.is_planned = False
        """Whether the plan was made for this process, rather than for an ancestor."""
        self.launched = False
        """Whether `cputrain launch` started this process."""
        self.on_trial = False
        """Whether `cputrain tune` measures this process: nothing may change its plan then."""


NOW = RuntimeState()

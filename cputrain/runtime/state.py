"""The state of this process: the decisions in effect, and what was applied for them.

`cputrain launch` and `cputrain.setup` share it, so that neither applies a decision twice.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.settings.core.setting import Applied


class RuntimeState:
    """Values and effects of settings in this process."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        """Values of the settings in effect, by name."""
        self.applied: dict[str, Applied] = {}
        """Applied settings by name, in the order of application."""
        self.thread_variables: dict[str, str] = {}
        """The environment variables for thread counts that the planned process had."""
        self.is_planned = False
        """Whether the plan was made for this process, rather than for an ancestor."""
        self.launched = False
        """Whether `cputrain launch` started this process."""
        self.on_trial = False
        """Whether `cputrain tune` measures this process: nothing may change its plan then."""


NOW = RuntimeState()

"""Base classes of settings."""

from __future__ import annotations

from cputrain.record import Generic
from cputrain.settings.core.decision import Change, Decision, Origin, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any, Protocol

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Request, UserValue
    from cputrain.settings.core.situation import Situation

    class Applied(Protocol):
        """A setting in effect in this process."""

        def describe(self) -> str:
            """Return the changes in effect now, for the report; "" if there are none."""

        def undo(self) -> None:
            """Revert the changes. Raises TooLateError if a running process cannot."""


THREADS = "Threads and placement"
MEMORY = "Memory allocation"
DATA = "Data loading"
ARITHMETIC = "Arithmetic and kernels"
PARALLEL = "Data parallelism"

OTHERS = "Other settings"

GROUPS = (THREADS, ARITHMETIC, PARALLEL, DATA, MEMORY, OTHERS)
"""Titles of the groups of settings, in the order of the help."""


class TooLateError(Exception):
    """A value can be applied or reverted only when a process starts; the message says why."""


class RefusedError(Exception):
    """The system does not allow the value, in a new process neither; the message says why."""


class Setting(Generic[Value]):
    """A setting: its values, the rule that decides, its trials, and how it is applied.

    Attributes are constants of the subclass. Methods import what the launcher does not need.
    """

    name: str
    """Name in plans, and key in cputrain.toml: "threads" for --threads and CPUTRAIN_THREADS."""

    order: int
    """Position in plans and in the help."""

    group = OTHERS
    """One of `GROUPS`, under which the help shows it."""

    is_advanced = False
    """Whether only --help-all shows it."""

    takes = ""
    """Values it accepts, for the help: "N|auto"; empty if users cannot set it."""

    help = ""
    """Description for the help, in a line."""

    choices: tuple[str, ...] = ()
    """Accepted values; empty if `decide` checks the value itself."""

    implied = ""
    """Value of its option if none is given; empty needs a value."""

    rule: str
    """What a value in a saved plan must be, for messages: "true or false"."""

    change = Change.EXACT
    """Effect on the arithmetic of a value that changes anything."""

    lowers_precision = False
    """Whether values other than `plain` compute with fewer bits."""

    plain = ""
    """Value under which a launch differs in nothing from python; empty if there is none."""

    variables: frozenset[str] = frozenset()
    """Environment variables that a decision may set."""

    is_per_thread = False
    """Whether it is a state of a thread, which threads inherit from the thread that starts them.

    Such settings are applied first.
    """

    @property
    def application_order(self) -> int:
        """Position among the settings that are applied: the first is the innermost wrapper."""
        return 0 if self.is_per_thread else self.order

    excluded_by: frozenset[str] = frozenset()
    """Names of settings beside which it has no effect: "memory_limit"."""

    # -- in a plan

    @property
    def flag(self) -> str:
        """Option on the command line: "--threads"."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable: "CPUTRAIN_THREADS"."""
        return "CPUTRAIN_" + self.name.upper()

    def decide(self, machine: Machine, request: Request) -> Decision[Value]:
        """Return the decision for a machine and a request, without changing anything.

        Raises:
            UsageError: The user's value is invalid, or does not fit the machine.
        """
        raise NotImplementedError

    def decision(
        self,
        value: Value,
        says: str,
        reason: str = "",
        *,
        user: UserValue | None = None,
        origin: Origin | None = None,
        change: Change | None = None,
        rejected: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        warning: str = "",
    ) -> Decision[Value]:
        """Return a decision.

        Args:
            value: Value of the setting; None and False change nothing.
            says: The value in a few words.
            reason: Reason for the value; by default, that the user set it.
            user: Value of the user that decides; None if a rule does.
            origin: Who decided, if it is not `user`.
            change: Effect on the arithmetic, if it is not that of the setting.
            rejected: Reasons against other values.
            environment: Variables for libraries.
            warning: Warning for the user.
        """
        if change is None:
            change = Change.NONE if value is None or value is False else self.change
        return Decision(
            policy=self.name,
            value=value,
            says=says,
            reason=reason or (user.reason if user else ""),
            origin=origin or (Origin.USER if user else Origin.RULE),
            change=change,
            environment=dict(environment or {}),
            rejected=dict(rejected or {}),
            warning=warning,
        )

    def load(self, document: Any) -> Value:
        """Return the value that a saved plan holds as JSON.

        Raises:
            ValueError: It breaks the setting's rule.
        """
        raise NotImplementedError

    def is_valid_variable(self, name: str, value: str) -> bool:
        """Return whether a saved plan may set an environment variable to a value."""
        is_number = value.isascii() and value.isdigit() and len(value) < 20
        return name in self.variables and is_number

    def read(self, values: Mapping[str, Any]) -> Value | None:
        """Return the value of this setting among those of a plan; None if it is missing."""
        return values.get(self.name)

    def has_effect(self, decision: Decision[Value]) -> bool:
        """Return whether a decision changes anything in a process."""
        return decision.change is not Change.NONE

    def inherited(self, value: Value) -> str:
        """Return the value for a rank whose launcher was planned with `value`.

        Empty if the rank decides anew, for its share of the machine.
        """
        return ""

    def is_inheritable(self, user_value: str) -> bool:
        """Return whether a rank or an inner launch takes over the value that the user gave."""
        return True

    # -- in a process

    patches_torch = True
    """Whether it wraps functions that other settings wrap, so that all are applied in order."""

    may_drift = False
    """Whether the script can change what was applied without undoing it."""

    def modules(self, value: Value) -> tuple[str, ...]:
        """Return modules other than torch after whose import `after_import` is to be called."""
        return ()

    def after_import(self, module: ModuleType, value: Value) -> None:
        """Apply what concerns one of `modules`, which has just been loaded."""

    def apply(self, torch: ModuleType, value: Value) -> Applied | None:
        """Apply the value to this process once torch is loaded; None if there is nothing to do."""
        return None

    # -- in a process that has run for a while: a notebook

    def is_in_effect(self, torch: ModuleType, decision: Decision[Value]) -> bool:
        """Return whether the process has this value already, whoever set it."""
        return False

    def observe(self, torch: ModuleType, decision: Decision[Value]) -> Applied | None:
        """Return what reports a value that is in effect already; None if nothing does."""
        return None

    def apply_now(self, torch: ModuleType, decision: Decision[Value]) -> Applied | None:
        """Apply the value to a process that was not launched with it.

        Raises:
            TooLateError: It can only be applied before the process starts.
            RefusedError: The system does not allow it.
        """
        return self.apply(torch, decision.value)

    def missing_part(self, decision: Decision[Value]) -> str:
        """Return what came too late though the rest is applied; "" for nothing."""
        return ""

    # -- in the search of `cputrain tune`

    trial_order = 0
    """Position among the settings that are tried, those with the largest effect first; 0: none."""

    is_expensive_to_try = False
    """Whether it is tried last, on top of the best of the others."""

    is_monotonic = False
    """Whether candidates are ordered: after several slower ones the rest is skipped."""

    def candidates(self, situation: Situation) -> list[str]:
        """Return values to try other than the planned one, the most promising first."""
        return []


class Switch(Setting[bool]):
    """Setting that is on or off, and off by default."""

    takes = "auto|on|off"
    choices = ("auto", "on", "off")
    rule = "true or false"
    plain = "off"

    says_on: str
    """The value "on" in a few words: "models compiled"."""

    says_off: str
    """The value "off" in a few words."""

    reason: str
    """Why it is off by default."""

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return off, unless the user or a measurement turned it on."""
        user = request.setting(self.name)
        if user is not None and user.value == "on":
            return self.decision(True, self.says_on, user=user)
        why = self.reason if user is None else f"{user.where} is off"
        return self.decision(
            False,
            self.says_off,
            self.reason if user is None else "",
            user=user,
            rejected={"on": f"{why}; {self.flag} on"},
        )

    def load(self, document: Any) -> bool:
        """Return the value that a saved plan holds."""
        if type(document) is not bool:
            raise ValueError(document)
        return document


class OnByDefault(Switch):
    """Setting that is on or off, and on by default: a run uses it where it has the same effects."""

    reason: str
    """Why it is on by default."""

    reason_not_off: str
    """What was measured without it."""

    def decide(self, machine: Machine, request: Request) -> Decision[bool]:
        """Return on, unless the user turned it off."""
        user = request.setting(self.name)
        if user is not None and user.value == "off":
            rejected = {"on": f"{user.where} is off"}
            return self.decision(False, self.says_off, user=user, rejected=rejected)
        return self.decision(
            True,
            self.says_on,
            "" if user else self.reason,
            user=user,
            rejected={"off": f"{self.reason_not_off}; {self.flag} off"},
        )

    def inherited(self, value: bool) -> str:
        """Return the value: it does not depend on the share of the machine."""
        return "on" if value else "off"

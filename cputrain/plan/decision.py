"""Types of policies: their input (Request, Setting, Knob) and their result (Decision)."""

from __future__ import annotations

from enum import StrEnum

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from cputrain.machine import Machine, Rank
    from cputrain.plan.backend import Candidate


class Origin(StrEnum):
    """Origin of a decision."""

    RULE = "rule"
    """A rule of cputrain: 8 threads, because the CPU quota is 8 cores."""

    MEASURED = "measured"
    """A measurement by `cputrain tune`: tcmalloc, because this script ran 1.2 times as fast."""

    USER = "user"
    """A setting of the user: 4 threads, because OMP_NUM_THREADS=4 was set."""


class Change(StrEnum):
    """Effect of a decision on the arithmetic."""

    NONE = "none"
    """Nothing changes: the script's own start method stays."""

    EXACT = "exact"
    """Equal results up to the order of additions: threads, placement, allocator."""

    FLUSHED = "flushed"
    """Denormals are flushed to zero: log(1e-40) is -inf. Only where the user sets it."""

    REDUCED = "reduced"
    """Reduced precision: bf16. Only where the user sets or allows it."""


class Decision(Record):
    """Decision of one policy, with its reason; part of a plan's JSON document."""

    policy: str
    """Name of the policy: "threads"."""

    value: Any
    """Value of the decision; a JSON type once the plan is saved."""

    says: str
    """The value in a few words: "8 threads"."""

    reason: str
    """Reason for the value, in a sentence."""

    origin: Origin = Origin.RULE
    """Whether a rule, a measurement or the user decided."""

    change: Change = Change.NONE
    """Effect on the arithmetic."""

    environment: dict[str, str] = {}
    """Variables that libraries read when the process starts or while torch is loaded."""

    rejected: dict[str, str] = {}
    """Values that were not chosen, with the reasons that `cputrain plan --why-not` prints."""

    warning: str = ""
    """Warning for the user, with what to do about it; empty if there is none."""


class Setting(Record):
    """Value of a knob, and where it was set."""

    value: str
    """Value as typed."""

    where: str
    """Where it was set: "--threads", "CPUTRAIN_THREADS", the path of a file."""

    measured: str = ""
    """Result of the measurement that chose the value; empty if the user set it."""


class Request(Record):
    """Input of all policies: the user's settings, and the process to plan."""

    settings: Mapping[str, Setting] = {}
    """Settings by the name of their knob."""

    environment: Mapping[str, str] = {}
    """The user's environment, without the variables of an outer cputrain."""

    rank: Rank | None = None
    """Index of this process among the ranks on the machine; None for a single process."""

    python: tuple[int, int] = (3, 11)
    """Version of the interpreter that will run the script."""

    backends: tuple[Candidate, ...] = ()
    """Backends that may replace the default one, as far as they were examined."""

    def setting(self, knob: str) -> Setting | None:
        """Return the setting of a knob; None if it is not set, or set to "auto"."""
        found = self.settings.get(knob)
        return None if found is None or found.value == "auto" else found


class Knob(Record):
    """Setting that a user may give as a flag, a CPUTRAIN_* variable or a key of cputrain.toml."""

    name: str
    """Key in cputrain.toml: "threads" for --threads and CPUTRAIN_THREADS."""

    takes: str = ""
    """Values it accepts, for the help: "N|auto"; empty if users cannot set it."""

    help: str
    """Description for the help, in a line."""

    choices: tuple[str, ...] = ()
    """Accepted values; empty if the policy checks the value itself."""

    @property
    def flag(self) -> str:
        """Option on the command line: "--threads"."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Environment variable: "CPUTRAIN_THREADS"."""
        return "CPUTRAIN_" + self.name.upper()


def switch(
    knob: Knob, asked: Setting | None, *, change: Change, on: str, off: str, reason: str
) -> Decision:
    """Return the decision of a policy that is off unless the user sets it to "on".

    Args:
        knob: Knob of the policy.
        asked: The user's setting, if any.
        change: Effect on the arithmetic if it is on.
        on: Text for the decision if it is on: "models compiled".
        off: Text for the decision if it is off.
        reason: Why it is off by default.
    """
    chosen = asked is not None and asked.value == "on"
    return Decision(
        policy=knob.name,
        value=chosen,
        says=on if chosen else off,
        reason=reason if asked is None else f"{asked.where} says so",
        origin=Origin.RULE if asked is None else Origin.USER,
        change=change if chosen else Change.NONE,
        rejected={}
        if chosen
        else {"on": f"{reason if asked is None else f'{asked.where} says off'}; {knob.flag} on"},
    )


if TYPE_CHECKING:

    class Policy(Protocol):
        """Module with a knob and a pure function that decides its value."""

        KNOB: Knob

        def decide(self, machine: Machine, request: Request) -> Decision:
            """Return the decision for a machine and a request."""

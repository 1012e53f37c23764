"""Input of a setting's decision (Request, UserValue) and its result (Decision)."""

from __future__ import annotations

from enum import StrEnum

from cputrain.record import Generic, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    from cputrain.machine import Rank
    from cputrain.settings.backend import Candidate

    Value = TypeVar("Value")
else:
    Value = None


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


class Decision(Record, Generic[Value]):
    """Decision on one setting, with its reason; part of a plan's JSON document."""

    policy: str
    """Name of the setting: "threads"."""

    value: Value
    """Value of the setting; a Record or a JSON type."""

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


class UserValue(Record):
    """Value that the user or `cputrain tune` gave to a setting, and where it was set."""

    value: str
    """Value as typed."""

    where: str
    """Where it was set: "--threads", "CPUTRAIN_THREADS", the path of a file."""

    measured: str = ""
    """Result of the measurement that chose the value; empty if the user set it."""

    @property
    def reason(self) -> str:
        """Reason of a decision for this value: "set by --threads"."""
        return f"set by {self.where}"


class Request(Record):
    """Input of all decisions beside the machine: the user's settings, and the process to plan."""

    settings: Mapping[str, UserValue] = {}
    """Values by the name of their setting."""

    environment: Mapping[str, str] = {}
    """The user's environment, without the variables of an outer cputrain."""

    rank: Rank | None = None
    """Index of this process among the ranks on the machine; None for a single process."""

    python: tuple[int, int] = (3, 11)
    """Version of the interpreter that will run the script."""

    backends: tuple[Candidate, ...] = ()
    """Backends that may replace the default one, as far as they were examined."""

    def setting(self, name: str) -> UserValue | None:
        """Return the value of a setting; None if it is not set, or set to "auto"."""
        user = self.settings.get(name)
        return None if user is None or user.value == "auto" else user

"""What a policy says, and what it is told."""

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
    """Why a decision stands."""

    RULE = "rule"
    """A rule of ours: 8 threads, because the quota feeds 8 cores."""

    MEASURED = "measured"
    """A measurement on this machine: tcmalloc, because this script ran 1.2 times as fast."""

    USER = "user"
    """The user's word: 4 threads, because OMP_NUM_THREADS=4 was set."""


class Change(StrEnum):
    """What a decision does to the arithmetic."""

    NONE = "none"
    """Nothing is changed: the start method of a script is left alone."""

    EXACT = "exact"
    """The same arithmetic up to the order of additions: threads, placement, allocator."""

    FLUSHED = "flushed"
    """Denormals become zero: log(1e-40) is -inf. Only ever by the user's word."""

    REDUCED = "reduced"
    """Fewer bits: bf16. Only ever by the user's word."""


class Decision(Record):
    """One policy's answer: frozen, printable, replayable."""

    policy: str
    """The policy that decided: "threads"."""

    value: Any
    """What was decided, as JSON can hold it."""

    says: str
    """The value in a few words, for people: "8 threads"."""

    reason: str
    """Why, in a sentence."""

    origin: Origin = Origin.RULE
    """Whether a rule, a measurement or the user stands behind it."""

    change: Change = Change.NONE
    """What it does to the arithmetic."""

    environment: dict[str, str] = {}
    """Variables that libraries read when the process starts or while torch is loaded."""

    rejected: dict[str, str] = {}
    """What was not chosen, and why not: the answers to --why-not."""

    warning: str = ""
    """Something the user should know, with what to do about it."""


class Setting(Record):
    """A knob as the user set it."""

    value: str
    """As typed."""

    where: str
    """Where it was typed: "--threads", "CPUTRAIN_THREADS", a file's path."""

    measured: str = ""
    """What a measurement found, where it was one that set it."""


class Request(Record):
    """What the user asked for, and the process that is to be planned."""

    settings: Mapping[str, Setting] = {}
    """Knobs that were set, by name."""

    environment: Mapping[str, str] = {}
    """The user's environment, without what an outer cputrain put there."""

    rank: Rank | None = None
    """This process's place among ranks on the machine."""

    python: tuple[int, int] = (3, 11)
    """The version of the interpreter that will run the script."""

    backends: tuple[Candidate, ...] = ()
    """What is known of backends other than the default."""

    def setting(self, knob: str) -> Setting | None:
        """The user's word on a knob; None for "auto", which leaves it to the rule."""
        found = self.settings.get(knob)
        return None if found is None or found.value == "auto" else found


class Knob(Record):
    """Something the user may set: a flag, a CPUTRAIN_* variable and a key of cputrain.toml."""

    name: str
    """In a file: "threads". The flag is --threads, the variable CPUTRAIN_THREADS."""

    takes: str = ""
    """What it takes, for the help: "N|auto"; empty for what is decided without asking."""

    help: str
    """What it does, in a line."""

    choices: tuple[str, ...] = ()
    """The values it takes; empty where the policy checks them itself."""

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "CPUTRAIN_" + self.name.upper()


def switch(
    knob: Knob, asked: Setting | None, *, change: Change, on: str, off: str, reason: str
) -> Decision:
    """A decision that is off unless somebody says on."""
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
        """A module with a knob and a pure function."""

        KNOB: Knob

        def decide(self, machine: Machine, request: Request) -> Decision:
            """The decision for this machine and request."""

"""What came of a plan in a process that was already running."""

from __future__ import annotations

from enum import StrEnum

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.plan import Plan
    from cputrain.tune.found import Found


class Effect(StrEnum):
    """What happened to a decision."""

    APPLIED = "applied"
    """It was carried out just now: fused optimizers."""

    ALREADY = "already so"
    """By `cputrain launch`, by an earlier setup, or by itself: 2 threads."""

    PARTLY = "in part"
    """Some of it came too late: short waits, only beside loader workers."""

    NOT_APPLIED = "not applied"
    """It came too late: huge pages."""

    NOTHING = "nothing to do"
    """It leaves things as they are: no channels last."""


class Step(Record):
    """A decision, and what happened to it."""

    policy: str
    """The policy that decided: "threads"."""

    says: str
    """What was decided, in a few words."""

    effect: Effect
    """What happened."""

    why: str = ""
    """What is to be known about that."""

    late: bool = False
    """Whether a process that begins under the plan would have it."""

    @property
    def name(self) -> str:
        """The policy, in words."""
        return self.policy.replace("_", " ")


class Setup(Record):
    """What `cputrain.setup` did, and what it could not do any more."""

    plan: Plan
    """The plan, with every reason."""

    steps: tuple[Step, ...]
    """What happened to each decision of it."""

    launched: bool
    """Whether `cputrain launch` started this process."""

    restart: str = ""
    """What to type to have all of it, where some came too late."""

    warnings: tuple[str, ...] = ()
    """What the user should know."""

    def step(self, policy: str) -> Step:
        """What happened to one policy's decision."""
        return next(found for found in self.steps if found.policy == policy)

    def of(self, effect: Effect) -> tuple[Step, ...]:
        """The decisions to which this happened."""
        return tuple(found for found in self.steps if found.effect is effect)

    def so_far(self) -> tuple[str, ...]:
        """What the plan of this process was applied to until now: fused Adam (4 tensors)."""
        from cputrain.runtime.state import NOW

        return tuple(said for found in NOW.applied.values() if (said := found.describe()))

    def __str__(self) -> str:
        applied = self.of(Effect.APPLIED)
        shown = ", ".join(found.says for found in applied) or "nothing was changed"
        lines = [f"cputrain: {shown}"]
        lines += [f"  {found.name}: {found.why}" for found in applied if found.why]
        already = self.of(Effect.ALREADY)
        if already:
            by = " (under cputrain launch)" if self.launched else ""
            lines.append(f"already so{by}: {', '.join(found.says for found in already)}")
        for effect in (Effect.PARTLY, Effect.NOT_APPLIED):
            lines += [f"{effect}: {found.says}: {found.why}" for found in self.of(effect)]
        if self.restart:
            lines.append(f"To have all of it: {self.restart}")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cputrain.report.html import setup_html

        return setup_html(self)


class Tuning(Record):
    """What a search in a notebook came to."""

    found: Found
    """The fastest, and every trial."""

    applied: Setup | None = None
    """What of it was applied to this process; None where nothing was to be."""

    kept_in: str | None = None
    """The file that `cputrain launch` reads it from; None for a cell."""

    left_out: tuple[str, ...] = ()
    """What only IPython could have run, and no trial did."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to say."""
        kept = () if self.kept_in is None else (f"Kept in {self.kept_in}.",)
        left = (f"Left out of the trials: {', '.join(self.left_out)}",) if self.left_out else ()
        return (*kept, *left)

    def __str__(self) -> str:
        from cputrain.report.plain import found_text

        lines = [found_text(self.found), *self.notes]
        return "\n".join([*lines, *([str(self.applied)] if self.applied is not None else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cputrain.report.html import found_html, note_html, setup_html

        parts = [found_html(self.found), *map(note_html, self.notes)]
        return "".join([*parts, *([setup_html(self.applied)] if self.applied is not None else [])])

"""Results of `cputrain.setup` and of a search in a notebook."""

from __future__ import annotations

from enum import StrEnum

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.plan import Plan
    from cputrain.tune.result import SearchResult


class Effect(StrEnum):
    """What happened to a decision in a running process."""

    APPLIED = "applied"
    """The decision was applied by this call: fused optimizers."""

    ALREADY = "already so"
    """The setting was in effect before, by a launch, an earlier setup or by default: 2 threads."""

    PARTLY = "in part"
    """A part of the decision came too late: short waits, only beside loader workers."""

    NOT_APPLIED = "not applied"
    """The decision came too late or was refused: a preloaded allocator."""

    NOTHING = "nothing to do"
    """The decision changes nothing: no channels last."""


class SetupStep(Record):
    """A decision of the plan and what happened to it."""

    policy: str
    """Name of the setting: "threads"."""

    says: str
    """The decision in a few words: "2 threads"."""

    effect: Effect
    """What happened to the decision."""

    why: str = ""
    """Why it was not applied, or only in part; empty otherwise."""

    late: bool = False
    """Whether a new process under `cputrain launch` would have the setting."""

    @property
    def name(self) -> str:
        """Name of the setting with spaces: "fused optimizer"."""
        return self.policy.replace("_", " ")


class SetupResult(Record):
    """Result of `cputrain.setup`: the plan, and what happened to each of its decisions."""

    plan: Plan
    """The plan of this process, with the reason for each decision."""

    steps: tuple[SetupStep, ...]
    """What happened to each decision, in the order of the plan."""

    launched: bool
    """Whether `cputrain launch` started this process."""

    restart: str = ""
    """Command that starts a process with the whole plan; empty if nothing came too late."""

    warnings: tuple[str, ...] = ()
    """Warnings for the user."""

    def step(self, policy: str) -> SetupStep:
        """Return what happened to the decision on a setting."""
        return next(step for step in self.steps if step.policy == policy)

    def of(self, effect: Effect) -> tuple[SetupStep, ...]:
        """Return the decisions with this effect."""
        return tuple(step for step in self.steps if step.effect is effect)

    def so_far(self) -> tuple[str, ...]:
        """Return what the applied settings have changed until now: "fused Adam (4 tensors)"."""
        from cputrain.runtime.state import NOW

        return tuple(text for applied in NOW.applied.values() if (text := applied.describe()))

    def __str__(self) -> str:
        applied = self.of(Effect.APPLIED)
        summary = ", ".join(step.says for step in applied) or "nothing was changed"
        lines = [f"cputrain: {summary}"]
        lines += [f"  {step.name}: {step.why}" for step in applied if step.why]
        already = self.of(Effect.ALREADY)
        if already:
            by = " (under cputrain launch)" if self.launched else ""
            lines.append(f"already so{by}: {', '.join(step.says for step in already)}")
        for effect in (Effect.PARTLY, Effect.NOT_APPLIED):
            lines += [f"{effect}: {step.says}: {step.why}" for step in self.of(effect)]
        if self.restart:
            lines.append(f"To apply the whole plan: {self.restart}")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cputrain.notebook.html import setup_html

        return setup_html(self)


class NotebookTuning(Record):
    """Result of `%cputrain_tune`: the search, and what was applied and stored."""

    result: SearchResult
    """The winner and every trial."""

    applied: SetupResult | None = None
    """What applying the winner to this process did; None if it was not applied."""

    kept_in: str | None = None
    """Path of the stored plan, which `cputrain launch` reads; None for a cell."""

    left_out: tuple[str, ...] = ()
    """Source lines that only IPython can run, which the trials did not have."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes to show below the result: the stored plan's path, and what was left out."""
        kept = () if self.kept_in is None else (f"Kept in {self.kept_in}.",)
        left = (f"Left out of the trials: {', '.join(self.left_out)}",) if self.left_out else ()
        return (*kept, *left)

    def __str__(self) -> str:
        from cputrain.report.plain import search_result_text

        lines = [search_result_text(self.result), *self.notes]
        return "\n".join([*lines, *([str(self.applied)] if self.applied is not None else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from cputrain.notebook.html import setup_html
        from cputrain.report.html import note_html, search_result_html

        parts = [search_result_html(self.result), *map(note_html, self.notes)]
        return "".join([*parts, *([setup_html(self.applied)] if self.applied is not None else [])])

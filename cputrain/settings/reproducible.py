"""Setting `reproducible`: the same bits on any number of cores."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.errors import UsageError
from cputrain.settings.core.exclusion import check_not_excluded
from cputrain.settings.core.setting import ARITHMETIC, Setting
from cputrain.settings.core.values import count, parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.decision import Decision, Request
    from cputrain.settings.core.setting import Applied

MAX_SHARDS = 1024

MKL_MODE = "MKL_CBWR"
"""The variable by which MKL takes one path of its code, whatever the alignment of memory."""


class ReproducibleSetting(Setting[int | None]):
    """Number of shards of each batch, which one thread computes each; None for none."""

    name = "reproducible"
    order = 162
    group = ARITHMETIC
    takes = "N|off"
    implied = "16"
    help = "the same bits on any number of cores, by N shards of each batch"
    rule = "a number of shards, or null"
    plain = "off"
    variables = frozenset({MKL_MODE})

    def decide(self, machine: Machine, request: Request) -> Decision[int | None]:
        """Return the number that the user set; none by default.

        Raises:
            UsageError: It is no number, or the user has set what it excludes.
        """
        user = request.setting(self.name)
        if user is None or user.value == "off":
            says = "results as torch's threads round them"
            return self.decision(None, says, "one thread for each shard costs time", user=user)
        number = parse_count(
            user,
            f"must be off or a whole number from 1 to {MAX_SHARDS}",
            most=MAX_SHARDS,
            advice="16 is the default.",
        )
        check_not_excluded(self, machine, request, user)
        if request.rank is not None and request.rank.count > 1:
            raise UsageError(
                user.where,
                "needs a single process",
                found=f"{request.rank.count} ranks, which add up gradients of their own",
                do="Leave out the ranks: the shards use all cores.",
            )
        is_set = MKL_MODE in request.environment or request.setting("isa") is not None
        return self.decision(
            number,
            f"the same bits on any number of cores, by {counted(number, 'shard')}",
            user=user,
            environment={} if is_set else {MKL_MODE: "AUTO"},
        )

    def is_valid_variable(self, name: str, value: str) -> bool:
        """Return whether the variable has the value that `decide` gives it."""
        return (name, value) == (MKL_MODE, "AUTO")

    def load(self, document: Any) -> int | None:
        """Return the number that a saved plan holds."""
        return None if document is None else count(document)

    def inherited(self, value: int | None) -> str:
        """Return the number."""
        return "" if value is None else str(value)

    def apply(self, torch: ModuleType, value: int | None) -> Applied | None:
        """Shard batches, and have one thread for all else."""
        if value is None:
            return None
        from cputrain.runtime.reproducible import ReproducibleTraining

        return ReproducibleTraining(torch, value)


SETTING = ReproducibleSetting()

"""Setting `replicas`: data parallelism within the process, on threads of separate cores."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.errors import UsageError
from cputrain.settings.core.cores import share_of
from cputrain.settings.core.decision import Decision, Origin, Request
from cputrain.settings.core.setting import PARALLEL, Setting
from cputrain.settings.core.values import count, parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation


class ReplicasSetting(Setting["int | str | None"]):
    """Number of replicas that divide each batch: None for one, or "auto" to measure it."""

    name = "replicas"
    excluded_by = frozenset({"memory_limit", "reproducible"})
    order = 160
    group = PARALLEL
    takes = "N|auto"
    help = "replicas that divide each batch (auto: the fastest of the first steps; left out: 1)"
    rule = "auto, a number of replicas, or null"
    plain = "1"
    trial_order = 40

    def decide(self, machine: Machine, request: Request) -> Decision[int | str | None]:
        """Return 1 replica, unless the user or a measurement set another number.

        Raises:
            UsageError: The number is invalid, or models are also to be compiled.
        """
        user = request.settings.get(self.name)  # "auto" differs from unset here
        if user is None:
            return self._undivided("how many pay depends on the script: a matter of measuring")
        compiled = request.setting("compile")
        if user.value != "1" and compiled is not None and compiled.value == "on":
            raise UsageError(
                user.where, "does not go with compiled models", found=f"{compiled.where} on",
                do="Leave one of the two out.",
            )  # fmt: skip
        if user.value == "auto":
            says = "batches divided among as many replicas as are fastest"
            return self.decision("auto", says, user=user)
        most = len(share_of(machine, request).fast)
        number = parse_count(
            user,
            f"must be auto or a whole number from 1 to the number of cores, {most}",
            most=most,
            advice="Leave it out for one.",
        )
        reason = user.measured or user.reason
        origin = Origin.MEASURED if user.measured else Origin.USER
        if number == 1:
            return self._undivided(reason, origin)
        says = f"batches divided among {counted(number, 'replica')}"
        return self.decision(number, says, reason, origin=origin)

    def _undivided(self, reason: str, origin: Origin = Origin.RULE) -> Decision[int | str | None]:
        more = f"{reason}; {self.flag} N divides each batch among N replicas"
        return self.decision(
            None, "batches undivided", reason, origin=origin, rejected={"more": more}
        )

    def load(self, document: Any) -> int | str | None:
        """Return the number that a saved plan holds."""
        return document if document is None or document == "auto" else count(document)

    def candidates(self, situation: Situation) -> list[str]:
        """Return one replica for each L3 cache or NUMA node, and for every few cores."""
        from cputrain.settings.core.teams import counts, ordered

        machine = situation.machine
        cores = ordered(machine, share_of(machine, Request()).fast)
        return list(map(str, counts(machine, cores[: situation.values["threads"]])))

    def apply(self, torch: ModuleType, value: int | str | None) -> Applied | None:
        """Divide batches of models when they are called."""
        if value is None:
            return None
        from cputrain.runtime.replicas import Replicas

        return Replicas(torch, value if isinstance(value, int) else None)


SETTING = ReplicasSetting()

"""Overlap: batches are prepared within the step, when nothing is trained."""

from __future__ import annotations

from cputrain.diagnose.causes.waiting import WITHOUT_WORKERS
from cputrain.diagnose.finding import Sure, found
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding


def find(case: Case) -> Iterator[Finding]:
    """What a loader without workers takes."""
    seen = case.seen
    if not seen.wait or any(one != WITHOUT_WORKERS for one in seen.loaders):
        return
    # a worker prepares the next batch meanwhile; nothing is faster than the slower of the two
    lost = seen.step - max(seen.step - seen.wait, seen.wait)
    yield found(
        case, lost,
        cause="overlap",
        title=f"batches are prepared within the step: {part_of(seen.wait, seen.step)} of it",
        evidence=(
            f"the loader has no workers, and takes {seen.wait * 1e3:.3g} ms of each step",
        ),
        remedy="DataLoader(..., num_workers=1, persistent_workers=True)",
        sure=Sure.CALCULATED,
    )  # fmt: skip

"""Missing overlap: a DataLoader without workers prepares batches between training steps."""

from __future__ import annotations

from cputrain.diagnose.causes.waiting import WITHOUT_WORKERS
from cputrain.diagnose.finding import Confidence, make_finding
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if no loader has workers."""
    seen = case.seen
    if not seen.wait or any(loader != WITHOUT_WORKERS for loader in seen.loaders):
        return
    # with a worker, a step takes the longer of training and preparing a batch
    lost_s = seen.step - max(seen.step - seen.wait, seen.wait)
    yield make_finding(
        case, lost_s,
        cause="overlap",
        title=f"batches are prepared within the step: {part_of(seen.wait, seen.step)} of it",
        evidence=(
            f"the loader has no workers, and takes {seen.wait * 1e3:.3g} ms of each step",
        ),
        remedy="DataLoader(..., num_workers=1, persistent_workers=True)",
        sure=Confidence.CALCULATED,
    )  # fmt: skip

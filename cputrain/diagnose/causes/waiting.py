"""Slow input: the training waits for batches although DataLoader workers prepare them."""

from __future__ import annotations

from cputrain.diagnose.finding import Confidence, make_finding
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding

WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"
"""Class name of the iterator of a DataLoader without workers."""


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if the training waits for a loader that has workers."""
    seen = case.seen
    if not seen.wait or all(loader == WITHOUT_WORKERS for loader in seen.loaders):
        return
    yield make_finding(
        case, seen.wait,
        cause="input",
        title=f"the training waits for data: {part_of(seen.wait, seen.step)} of a step",
        evidence=(
            f"each step waits {seen.wait * 1e3:.3g} ms for the loader's next batch, though it has "
            "workers",
        ),
        remedy="DataLoader(..., num_workers=\"auto\") of cputrain, or a Dataset that does less",
        sure=Confidence.CALCULATED,
    )  # fmt: skip

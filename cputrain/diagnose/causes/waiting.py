"""Input: workers prepare batches, and the training waits for them all the same."""

from __future__ import annotations

from cputrain.diagnose.finding import Sure, found
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding

WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"


def find(case: Case) -> Iterator[Finding]:
    """What is waited for, where there are workers."""
    seen = case.seen
    if not seen.wait or all(one == WITHOUT_WORKERS for one in seen.loaders):
        return
    yield found(
        case, seen.wait,
        cause="input",
        title=f"the training waits for data: {part_of(seen.wait, seen.step)} of a step",
        evidence=(
            f"{seen.wait * 1e3:.3g} ms of each step pass in the loader's next batch, though it has "
            "workers",
        ),
        remedy="DataLoader(..., num_workers=\"auto\") of cputrain, or a Dataset that does less",
        sure=Sure.CALCULATED,
    )  # fmt: skip

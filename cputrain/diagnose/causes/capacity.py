"""Too little memory: pages are dropped by the system, and read again when they are needed."""

from __future__ import annotations

from cputrain.diagnose.finding import Confidence, make_finding
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if steps wait for memory."""
    seen = case.seen
    num_reads = seen.counted.get("reads", 0.0)
    stalled_s = seen.counted.get("stalled_seconds", 0.0)
    if not num_reads or not stalled_s:  # without reads, the stalls are other programs'
        return
    yield make_finding(
        case, stalled_s,
        cause="capacity",
        title=f"memory is short: {part_of(min(stalled_s, seen.step), seen.step)} of a step waits "
        "for pages",
        evidence=(
            f"pages that the system had dropped were read again {num_reads:.3g} times in each step",
            f"processes waited {stalled_s * 1e3:.3g} ms of each step for memory",
        ),
        remedy="cputrain launch --memory-limit auto, or a smaller batch (cputrain plan --memory "
        "shows what takes memory, and the largest batch that fits)",
        settings={"memory_limit": "auto"},
        sure=Confidence.AT_BEST,
    )  # fmt: skip

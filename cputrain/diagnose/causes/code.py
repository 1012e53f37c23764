"""Code: what takes time and computes nothing, or computes it in a roundabout way."""

from __future__ import annotations

from cputrain.diagnose.finding import Sure, found
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding

PASSES = {"Adam": 7, "AdamW": 7, "Adagrad": 5, "SGD": 5}
"""Times that a fused step reads or writes as much as there are parameters."""

TENSOR_SECONDS = 2e-6
"""Of a fused step, for each tensor."""

DENORMAL_SHARE = 1e-3
"""Part of all results from which on denormal numbers are talked of."""

FLUSHING = (
    "it is not exact, numbers below 1.2e-38 become zero, and the logarithm of a probability that "
    "small becomes -inf"
)
"""What the option changes. So it is never tried by itself, nor by --apply."""

LAUNCH = "cputrain launch"


def find(case: Case) -> Iterator[Finding]:
    """Optimizers, pages, denormals, Python, a limit that is used up, and heat."""
    for one in (_optimizer, _pages, _denormals, _python, _throttled, _hot):
        yield from one(case)


def _optimizer(case: Case) -> Iterator[Finding]:
    seen = case.seen
    slow = [
        one for one in seen.optimizers
        if one["can_fuse"] and not one["fused"] and one["name"] in PASSES
    ]  # fmt: skip
    if not slow:
        return
    whole = sum(PASSES[one["name"]] * one["bytes"] for one in slow)
    tensors = sum(one["tensors"] for one in slow)
    level = "memory" if whole > _last_cache(case) else "l3"
    fused = whole / case.roof.streaming(seen.threads, level) + tensors * TENSOR_SECONDS
    names = ", ".join(dict.fromkeys(one["name"] for one in slow))
    calls = sum(one.calls for one in seen.operators if one.phase == "optimizer")
    yield found(
        case, max(0.0, seen.optimizer - fused),
        cause="code",
        title=f"{names} takes {part_of(seen.optimizer, seen.step)} of a step: it is not fused",
        evidence=(
            f"it takes {seen.optimizer * 1e3:.3g} ms in {calls:.0f} operators on {tensors} tensors",
            f"one pass over them takes about {fused * 1e3:.3g} ms",
        ),
        remedy=f"{LAUNCH} does it, or {names.split(',')[0]}(..., fused=True)",
        settings={"fused_optimizer": "on"},
        sure=Sure.CALCULATED,
    )  # fmt: skip


def _last_cache(case: Case) -> int:
    domains = case.machine.topology.l3_domains
    return sum(one.size_bytes or 0 for one in domains)


def _pages(case: Case) -> Iterator[Finding]:
    seen = case.seen
    faults = seen.counted.get("faults", 0.0)
    system = seen.counted.get("system_seconds", 0.0)
    # threads that compute side by side wait side by side
    lost = min(faults * case.roof.fault_seconds, system) / max(1.0, seen.busy)
    if not lost:
        return
    yield found(
        case, lost,
        cause="code",
        title=f"memory is given back and asked for anew: {faults:.0f} pages in each step",
        evidence=(
            f"a page that is touched at first takes {1e6 * case.roof.fault_seconds:.2g} µs",
            f"the system took {system * 1e3:.3g} ms of a step",
        ),
        remedy=f"{LAUNCH} tells the allocator to keep it",
        settings={"allocator": "tuned"},
        sure=Sure.CALCULATED,
    )  # fmt: skip


def _denormals(case: Case) -> Iterator[Finding]:
    seen = case.seen
    if seen.tiny < DENORMAL_SHARE:
        return
    count = sum(one.bytes for one in seen.operators) / 4 * seen.tiny
    longer = case.roof.denormal_seconds
    lost = min(count * longer / seen.threads, seen.computing)
    yield found(
        case, lost, from_operators=True,
        cause="code",
        title=f"{seen.tiny:.1%} of all results are too small for a normal number (denormals)",
        evidence=(
            f"such a number takes this CPU up to {longer * 1e9:.2g} ns longer than another",
        ),
        remedy=f"{LAUNCH} --flush-denormals on, where the results stay good: {FLUSHING}",
        settings={"flush_denormals": "on"},
        exact=False,
        changes=FLUSHING,
        sure=Sure.AT_BEST,
    )  # fmt: skip


def _python(case: Case) -> Iterator[Finding]:
    seen = case.seen
    calls = sum(one.calls for one in seen.operators)
    if not calls:
        return
    yield found(
        case, seen.between / 2,
        cause="code",
        title=f"Python takes {part_of(seen.between, seen.step)} of a step, between operators",
        evidence=(
            f"{calls:.0f} operators of {seen.computing / calls * 1e6:.3g} µs in the mean; "
            f"{seen.between / calls * 1e6:.3g} µs between two",
        ),
        remedy="a larger batch, or try cputrain launch --compile on",
        settings={"compile": "on"},
        sure=Sure.AT_BEST,
    )  # fmt: skip


def _throttled(case: Case) -> Iterator[Finding]:
    seconds = case.seen.counted.get("throttled_seconds", 0.0)
    if seconds:
        yield found(
            case, seconds / max(1, case.seen.threads),
            cause="code",
            title="the container's share of the CPU is used up",
            evidence=(f"its threads were held for {seconds * 1e3:.3g} ms in each step",),
            remedy=f"{LAUNCH} uses as many threads as the quota feeds; or a larger quota",
            settings={},
            sure=Sure.CALCULATED,
        )  # fmt: skip


def _hot(case: Case) -> Iterator[Finding]:
    seen = case.seen
    if seen.counted.get("hot", 0.0) and seen.clock < seen.highest_clock:
        slower = 1 - seen.clock / seen.highest_clock
        yield found(
            case, seen.computing * slower, from_operators=True,
            cause="code",
            title=f"the CPU becomes too hot, and computes {slower:.0%} slower",
            evidence=(
                f"{seen.clock / 1e9:.2f} GHz in the mean, {seen.highest_clock / 1e9:.2f} at best; "
                "its sensors slowed it down meanwhile",
            ),
            remedy="better cooling, or a lower limit of power that it can hold",
            sure=Sure.CALCULATED,
        )  # fmt: skip

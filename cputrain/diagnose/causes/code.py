"""Overheads of code: unfused optimizers, page faults, denormals, Python, CPU quota, and heat."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.diagnose.finding import Confidence, make_finding
from cputrain.diagnose.rates import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding

FUSED_PASSES = {"Adam": 7, "AdamW": 7, "Adagrad": 5, "SGD": 5}
"""Bytes that a fused optimizer step reads and writes, as a multiple of the parameters' bytes."""

FUSED_TENSOR_S = 2e-6
"""Seconds per tensor of a fused optimizer step."""

SMALL_STEP_S = 0.02
"""Duration of a step below which it can be compiled as a whole."""

MIN_DENORMALS = 1e-3
"""Fraction of denormal results above which they are reported."""

FLUSHING = (
    "it is not exact, numbers below 1.2e-38 become zero, and the logarithm of a probability that "
    "small becomes -inf"
)
"""What flushing denormals changes in the results; hence `--apply` never tries it."""

LAUNCH = "cputrain launch"


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield findings of optimizers, page faults, denormals, Python, the CPU quota, and heat."""
    for search in (_optimizer, _pages, _denormals, _python, _throttled, _hot):
        yield from search(case)


def _optimizer(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if optimizers could be fused."""
    seen = case.seen
    unfused = [
        optimizer for optimizer in seen.optimizers
        if optimizer["can_fuse"] and not optimizer["fused"] and optimizer["name"] in FUSED_PASSES
    ]  # fmt: skip
    if not unfused:
        return
    num_bytes = sum(FUSED_PASSES[optimizer["name"]] * optimizer["bytes"] for optimizer in unfused)
    num_tensors = sum(optimizer["tensors"] for optimizer in unfused)
    level = "memory" if num_bytes > _l3_bytes(case) else "l3"
    fused_s = num_bytes / case.roof.streaming(seen.threads, level) + num_tensors * FUSED_TENSOR_S
    names = ", ".join(dict.fromkeys(optimizer["name"] for optimizer in unfused))
    num_calls = sum(operator.calls for operator in seen.operators if operator.phase == "optimizer")
    yield make_finding(
        case, max(0.0, seen.optimizer - fused_s),
        cause="code",
        title=f"{names} takes {part_of(seen.optimizer, seen.step)} of a step: it is not fused",
        evidence=(
            f"it takes {seen.optimizer * 1e3:.3g} ms in "
            f"{counted(round(num_calls), 'operator')} on {counted(num_tensors, 'tensor')}",
            f"one pass over them takes about {fused_s * 1e3:.3g} ms",
        ),
        remedy=f"{LAUNCH} does it, or {names.split(',')[0]}(..., fused=True)",
        settings={"fused_optimizer": "on"},
        sure=Confidence.CALCULATED,
    )  # fmt: skip


def _l3_bytes(case: DiagnosedCase) -> int:
    """Return the size of all L3 caches together."""
    domains = case.machine.topology.l3_domains
    return sum(domain.size_bytes or 0 for domain in domains)


def _pages(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if the allocator returns memory to the system and faults it in again."""
    seen = case.seen
    num_faults = seen.counted.get("faults", 0.0)
    system_s = seen.counted.get("system_seconds", 0.0)
    # page faults of concurrent threads overlap
    lost_s = min(num_faults * case.roof.fault_seconds, system_s) / max(1.0, seen.busy_cpus)
    if not lost_s:
        return
    yield make_finding(
        case, lost_s,
        cause="code",
        title=f"memory is returned and allocated again: {num_faults:.0f} page faults in each step",
        evidence=(
            f"a page fault takes {1e6 * case.roof.fault_seconds:.2g} µs",
            f"the kernel took {system_s * 1e3:.3g} ms of CPU time in a step",
        ),
        remedy=f"{LAUNCH} makes the allocator keep it",
        settings={"allocator": "tuned"},
        sure=Confidence.CALCULATED,
    )  # fmt: skip


def _denormals(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if many results are denormal numbers."""
    seen = case.seen
    if seen.tiny < MIN_DENORMALS:
        return
    num_denormals = sum(operator.bytes for operator in seen.operators) / 4 * seen.tiny
    denormal_s = case.roof.denormal_seconds
    lost_s = min(num_denormals * denormal_s / seen.threads, seen.computing)
    yield make_finding(
        case, lost_s, from_operators=True,
        cause="code",
        title=f"{seen.tiny:.1%} of all results are too small for a normal number (denormals)",
        evidence=(
            f"such a number takes this CPU up to {denormal_s * 1e9:.2g} ns longer than another",
        ),
        remedy=f"{LAUNCH} --flush-denormals on, where the results stay good: {FLUSHING}",
        settings={"flush_denormals": "on"},
        exact=False,
        changes=FLUSHING,
        sure=Confidence.AT_BEST,
    )  # fmt: skip


def _python(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding for the time between operators, half of which a remedy may save."""
    seen = case.seen
    num_calls = sum(operator.calls for operator in seen.operators)
    if not num_calls:
        return
    if seen.step < SMALL_STEP_S:
        option, settings = "--record-step auto", {"record_step": "auto"}
        by_hand = "; cputrain.Step compiles the whole step"
    else:
        option, settings, by_hand = "--compile on", {"compile": "on"}, ""
    yield make_finding(
        case, seen.between / 2,
        cause="code",
        title=f"Python takes {part_of(seen.between, seen.step)} of a step, between operators",
        evidence=(
            f"{num_calls:.0f} operators of {seen.computing / num_calls * 1e6:.3g} µs on average; "
            f"{seen.between / num_calls * 1e6:.3g} µs between two",
        ),
        remedy=f"a larger batch, or try cputrain launch {option}{by_hand}",
        settings=settings,
        sure=Confidence.AT_BEST,
    )  # fmt: skip


def _throttled(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if the container's CPU quota throttled the threads."""
    throttled_s = case.seen.counted.get("throttled_seconds", 0.0)
    if throttled_s:
        yield make_finding(
            case, throttled_s / max(1, case.seen.threads),
            cause="code",
            title="the container's CPU quota is used up",
            evidence=(f"its threads were throttled for {throttled_s * 1e3:.3g} ms in each step",),
            remedy=f"{LAUNCH} uses as many threads as the quota allows; or a larger quota",
            settings={},
            sure=Confidence.CALCULATED,
        )  # fmt: skip


def _hot(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if heat lowered the CPU's clock."""
    seen = case.seen
    if seen.counted.get("hot", 0.0) and seen.clock < seen.highest_clock:
        slowdown = 1 - seen.clock / seen.highest_clock
        yield make_finding(
            case, seen.computing * slowdown, from_operators=True,
            cause="code",
            title=f"the CPU overheats, and computes {slowdown:.0%} slower",
            evidence=(
                f"{seen.clock / 1e9:.2f} GHz on average, {seen.highest_clock / 1e9:.2f} at best; "
                "thermal throttling slowed it down meanwhile",
            ),
            remedy="better cooling, or a power limit that it can hold",
            sure=Confidence.CALCULATED,
        )  # fmt: skip

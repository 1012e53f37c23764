"""Memory traffic: chains of elementwise operators, and memory that is all on one NUMA node."""

from __future__ import annotations

from cputrain.diagnose.finding import Confidence, make_finding
from cputrain.diagnose.rates import of_roof, part_of
from cputrain.machine import cores_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding
    from cputrain.diagnose.step_profile import OperatorTime, StepProfile

MIN_CALL_BYTES = 1 << 20
"""Bytes of a call above which memory traffic counts; fewer stay in a core's cache."""

MIN_CHAIN = 2
"""Smallest number of consecutive operators that are worth fusing."""


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield findings of chains of elementwise operators, and of memory on one NUMA node."""
    yield from _unfused_chains(case)
    yield from _one_node(case)


def _unfused_chains(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if a compiler could fuse chains of elementwise operators."""
    seen = case.seen
    chains = [chain for chain in _elementwise_chains(seen) if len(chain) >= MIN_CHAIN]
    lost_s = sum(_savings_s(chain) for chain in chains)
    if lost_s <= 0:
        return
    calls = [operator for chain in chains for operator in chain]
    seconds = sum(operator.seconds / operator.calls for operator in calls)
    num_bytes = sum(operator.bytes / operator.calls for operator in calls)
    roof_s = sum(
        case.roof.transfer_seconds(operator.bytes / operator.calls, seen.threads)
        for operator in calls
    )
    share = part_of(seconds, seen.instrumented_step)
    yield make_finding(
        case, lost_s, from_operators=True,
        cause="memory",
        title=f"{share} of a step goes to and from memory, operator by operator",
        evidence=(
            f"chains of elementwise operators ({len(chains)} of {len(calls)}) read and write "
            f"{num_bytes / 2**20:.0f} MiB in {seconds * 1e3:.3g} ms",
            f"that is {of_roof(num_bytes / seconds, num_bytes / roof_s, 'B/s')} "
            "of memory and caches",
            "fused to one operator, each chain would read and write once",
        ),
        remedy="try cputrain launch --compile on (fuses each chain)",
        settings={"compile": "on"},
        sure=Confidence.AT_BEST,
    )  # fmt: skip


def _elementwise_chains(seen: StepProfile) -> Iterator[list[OperatorTime]]:
    """Yield runs of consecutive large elementwise operators of one phase; some runs are empty."""
    chain: list[OperatorTime] = []
    for index, _, _ in seen.line:
        operator = seen.operators[index]
        if (
            operator.elementwise
            and operator.phase != "optimizer"
            and operator.bytes > MIN_CALL_BYTES * operator.calls
        ):
            if chain and chain[-1].phase != operator.phase:
                yield chain
                chain = []
            chain.append(operator)
        elif operator.bytes:  # a view, which moves no bytes, does not end a chain
            yield chain
            chain = []
    yield chain


def _one_node(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if several NUMA nodes compute and most memory is on one of them."""
    seen = case.seen
    allowed = set(case.machine.budget.cpus)
    nodes = [node for node in case.machine.nodes if not allowed.isdisjoint(node.cpus)]
    total_bytes = sum(seen.placed.values())
    if len(nodes) < 2 or not total_bytes:
        return
    if seen.threads <= max(len(cores_within(case.machine.topology, node.cpus)) for node in nodes):
        return  # all threads may be on the node with the memory
    fullest = max(seen.placed, key=lambda node: seen.placed[node])
    share = seen.placed[fullest] / total_bytes
    # memory of one node is read through the channels of that node alone
    memory_bound_s = sum(
        operator.seconds
        for operator in seen.operators
        if not operator.flops and operator.bytes > MIN_CALL_BYTES * operator.calls
    )
    yield make_finding(
        case, memory_bound_s * max(0.0, 1 - 1 / (len(nodes) * share)), from_operators=True,
        cause="memory",
        title=f"{share:.0%} of the memory is on node {fullest}, and {len(nodes)} nodes compute",
        evidence=(
            f"memory-bound operators take {memory_bound_s * 1e3:.3g} ms of a step, through the "
            f"channels of one of {len(nodes)} nodes",
        ),
        remedy="cputrain launch --memory-policy interleave",
        settings={"memory_policy": "interleave"},
        sure=Confidence.CALCULATED,
    )  # fmt: skip


def _savings_s(chain: list[OperatorTime]) -> float:
    """Return the seconds saved if only the largest operator's bytes were read and written."""
    num_bytes = [operator.bytes / operator.calls for operator in chain]
    seconds = sum(operator.seconds / operator.calls for operator in chain)
    return seconds * max(0.0, 1 - max(num_bytes) / sum(num_bytes))

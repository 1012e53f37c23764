"""Memory: operators that read and write more than they compute, one after the other."""

from __future__ import annotations

from cputrain.diagnose.finding import Sure, found
from cputrain.diagnose.rates import of_roof, part_of
from cputrain.machine import cores_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding
    from cputrain.diagnose.seen import Operator, Seen

LEAST = 1 << 20
"""Bytes of a call: what is less stays in a core's cache."""

CHAIN = 2
"""Operators, one after the other, that are worth being one."""


def find(case: Case) -> Iterator[Finding]:
    """Chains of operators; and memory that is all in one place."""
    yield from _chains(case)
    yield from _one_node(case)


def _chains(case: Case) -> Iterator[Finding]:
    seen = case.seen
    long = [one for one in _followed(seen) if len(one) >= CHAIN]
    lost = sum(_lost(one) for one in long)
    if lost <= 0:
        return
    every = [each for one in long for each in one]
    seconds = sum(one.seconds / one.calls for one in every)
    moved = sum(one.bytes / one.calls for one in every)
    least = sum(case.roof.transfer_seconds(one.bytes / one.calls, seen.threads) for one in every)
    share = part_of(seconds, seen.whole)
    yield found(
        case, lost, from_operators=True,
        cause="memory",
        title=f"{share} of a step goes to and from memory, operator by operator",
        evidence=(
            f"{len(every)} operators in {len(long)} chains go over {moved / 2**20:.0f} MiB, number "
            f"by number, in {seconds * 1e3:.3g} ms",
            f"that is {of_roof(moved / seconds, moved / least, 'B/s')} that memory and caches have",
            "as one for each chain they would read and write once",
        ),
        remedy="try cputrain launch --compile on (makes one of each chain)",
        settings={"compile": "on"},
        sure=Sure.AT_BEST,
    )  # fmt: skip


def _followed(seen: Seen) -> Iterator[list[Operator]]:
    """Operators that go over much memory number by number, with nothing else between them."""
    chain: list[Operator] = []
    for which, _, _ in seen.line:
        one = seen.operators[which]
        if one.elementwise and one.phase != "optimizer" and one.bytes > LEAST * one.calls:
            if chain and chain[-1].phase != one.phase:
                yield chain
                chain = []
            chain.append(one)
        elif one.bytes:  # a view is nothing
            yield chain
            chain = []
    yield chain


def _one_node(case: Case) -> Iterator[Finding]:
    seen = case.seen
    own = set(case.machine.budget.cpus)
    nodes = [node for node in case.machine.nodes if not own.isdisjoint(node.cpus)]
    whole = sum(seen.placed.values())
    if len(nodes) < 2 or not whole:
        return
    if seen.threads <= max(len(cores_within(case.machine.topology, one.cpus)) for one in nodes):
        return  # they may all be beside it
    fullest = max(seen.placed, key=lambda one: seen.placed[one])
    share = seen.placed[fullest] / whole
    # what is fetched from one node comes through that node's channels alone
    bound = sum(
        one.seconds for one in seen.operators if not one.flops and one.bytes > LEAST * one.calls
    )
    yield found(
        case, bound * max(0.0, 1 - 1 / (len(nodes) * share)), from_operators=True,
        cause="memory",
        title=f"{share:.0%} of the memory is on node {fullest}, and {len(nodes)} nodes compute",
        evidence=(
            f"operators that go over memory take {bound * 1e3:.3g} ms of a step, through the "
            f"channels of one of {len(nodes)} nodes",
        ),
        remedy="cputrain launch --memory-policy interleave",
        settings={"memory_policy": "interleave"},
        sure=Sure.CALCULATED,
    )  # fmt: skip


def _lost(chain: list[Operator]) -> float:
    """Seconds, if what is largest was read and written once."""
    each = [one.bytes / one.calls for one in chain]
    seconds = sum(one.seconds / one.calls for one in chain)
    return seconds * max(0.0, 1 - max(each) / sum(each))

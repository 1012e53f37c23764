"""Which modules' activations are computed again in backward, so that a step's peak is low enough.

A forward is a list of saved tensors in the order in which autograd saves them. The call of a module
is a span of this list, and calls within it are spans within that span. If a call is recomputed, its
saved tensors are dropped at its end, and its inputs are kept instead. Backward releases saved
tensors from the last to the first; where it comes to the end of a recomputed call, all of the
call's saved tensors exist again.
"""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


PARTS = (1, 2, 4, 8, 16, 32)
"""Parts of all saved bytes that are tried as the largest gain of one call: what large calls save
exists again in backward."""


MIN_GAIN = 0.05
"""Least part of what a call saves that its recomputation must free to be worth while."""


class CallSpan(Record):
    """A call of a module in a forward."""

    start: int
    """Number of tensors that were saved before it."""

    end: int
    """Number of tensors that were saved until its end."""

    seconds: float
    """Duration of its forward."""

    inputs: tuple[int, ...]
    """Storages of the tensors that it is called with."""


class ForwardTrace(Record):
    """Saved tensors and calls of one forward."""

    saved: tuple[int, ...]
    """Storage of each saved tensor, in order; 0 for tensors that exist anyway, as parameters."""

    sizes: Mapping[int, int]
    """Bytes of each storage."""

    calls: tuple[CallSpan | None, ...]
    """Calls of modules in the order in which they begin; None for one that cannot be recomputed."""

    def bytes_of(self, storages: Iterable[int]) -> int:
        """Return the bytes of some storages, each counted once."""
        return sum(self.sizes.get(storage, 0) for storage in set(storages))

    @property
    def saved_bytes(self) -> int:
        """Bytes of all saved tensors."""
        return self.bytes_of(self.saved)

    def span(self, index: int) -> CallSpan:
        """Return a call that can be recomputed."""
        call = self.calls[index]
        assert call is not None
        return call

    def seconds(self, recomputed: Iterable[int]) -> float:
        """Return how long the forwards of some calls took."""
        return sum(self.span(index).seconds for index in recomputed)

    def peak_bytes(self, recomputed: Collection[int], num_temporaries: int = 0) -> int:
        """Return the largest sum of saved tensors during backward.

        Args:
            recomputed: Indices of the calls that are recomputed; none is within another one.
            num_temporaries: Tensors that are there beside a saved tensor, each as large as it.
        """
        spans = sorted(map(self.span, recomputed), key=lambda span: span.start)
        held: dict[int, int] = {}  # how many saved tensors share a storage
        total = peak = 0

        def hold(storages: Iterable[int]) -> None:
            nonlocal total
            for storage in storages:
                held[storage] = held.get(storage, 0) + 1
                if held[storage] == 1:
                    total += self.sizes.get(storage, 0)

        def release(storages: Sequence[int]) -> None:
            nonlocal total, peak
            for storage in reversed(storages):
                size = self.sizes.get(storage, 0)
                peak = max(peak, total + num_temporaries * size)
                held[storage] -= 1
                if held[storage] == 0:
                    total -= size

        position = 0
        for span in spans:
            hold(self.saved[position : span.start])
            hold(span.inputs)
            position = span.end
        hold(self.saved[position:])
        peak = max(peak, total)
        end = len(self.saved)
        for span in reversed(spans):
            release(self.saved[span.end : end])
            hold(self.saved[span.start : span.end])
            peak = max(peak, total)
            release(self.saved[span.start : span.end])
            release(span.inputs)
            end = span.start
        release(self.saved[:end])
        return peak


def calls_to_recompute(trace: ForwardTrace, budget_bytes: int) -> frozenset[int]:
    """Return the calls to recompute: those that cost the least time with a peak within the budget.

    If no choice is within the budget, the one with the lowest peak is returned.
    """
    saved_bytes = trace.saved_bytes
    if saved_bytes <= budget_bytes:
        return frozenset()
    gains = _gains(trace)
    largest_gains = [saved_bytes / part for part in PARTS]
    choices = {
        _cheapest_first(trace, [gain for gain in gains if gain.bytes <= largest], budget_bytes)
        for largest in largest_gains
    }

    def cost(choice: frozenset[int]) -> tuple[int, float]:
        beyond_bytes = max(0, trace.peak_bytes(choice) - budget_bytes)
        return beyond_bytes, trace.seconds(choice)

    return min(choices, key=cost)


class _Gain(Record):
    """What the recomputation of a call saves."""

    index: int
    """Index of the call."""

    bytes: int
    """Memory that is free until backward comes to the call."""

    seconds_per_byte: float
    """Duration of its forward for each such byte."""


def _cheapest_first(
    trace: ForwardTrace, gains: Iterable[_Gain], budget_bytes: int
) -> frozenset[int]:
    """Choose calls, the cheapest first, until the peak is within the budget."""
    chosen: list[int] = []
    best, best_peak = frozenset[int](), trace.saved_bytes
    for gain in sorted(gains, key=lambda gain: (gain.seconds_per_byte, gain.index)):
        span = trace.span(gain.index)
        if any(is_within(span, trace.span(index)) for index in chosen):
            continue
        chosen = [index for index in chosen if not is_within(trace.span(index), span)]
        chosen.append(gain.index)
        peak = trace.peak_bytes(chosen)
        if peak < best_peak:
            best, best_peak = frozenset(chosen), peak
        if peak <= budget_bytes:
            break
    return _without_needless(trace, best, max(budget_bytes, best_peak))


def _gains(trace: ForwardTrace) -> list[_Gain]:
    """Return what each call's recomputation saves; calls that save nothing are left out."""
    last_use: dict[int, int] = {}
    first_use: dict[int, int] = {}
    for position, storage in enumerate(trace.saved):
        last_use[storage] = position
        first_use.setdefault(storage, position)
    gains = []
    for index, span in enumerate(trace.calls):
        if span is None:
            continue
        saved = set(trace.saved[span.start : span.end])
        inner = [
            storage
            for storage in saved.difference(span.inputs)
            if first_use[storage] >= span.start and last_use[storage] < span.end
        ]
        added = [storage for storage in span.inputs if storage not in last_use]
        num_bytes = trace.bytes_of(inner) - trace.bytes_of(added)
        if num_bytes > MIN_GAIN * trace.bytes_of(saved):
            seconds_per_byte = span.seconds / num_bytes
            gains.append(_Gain(index=index, bytes=num_bytes, seconds_per_byte=seconds_per_byte))
    return gains


def is_within(span: CallSpan, outer: CallSpan) -> bool:
    """Return whether a call is part of another one, or is that call."""
    return outer.start <= span.start and span.end <= outer.end


def _without_needless(
    trace: ForwardTrace, chosen: frozenset[int], budget_bytes: int
) -> frozenset[int]:
    """Leave out calls without which the peak is within the budget, too; the slowest first."""
    kept: Sequence[int] = sorted(chosen)
    for index in sorted(chosen, key=lambda each: -trace.span(each).seconds):
        fewer = [each for each in kept if each != index]
        if trace.peak_bytes(fewer) <= budget_bytes:
            kept = fewer
    return frozenset(kept)

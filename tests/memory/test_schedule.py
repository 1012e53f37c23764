"""Which calls are recomputed: peaks are those of a plain simulation, and choices are sound."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from cputrain.memory.schedule import CallSpan, ForwardTrace, calls_to_recompute


def trace_of(seed: int) -> ForwardTrace:
    """Return a forward of nested calls that save tensors, some of them twice."""
    chance = random.Random(seed)
    saved: list[int] = []
    calls: list[CallSpan | None] = []

    def call(depth: int) -> None:
        index, start = len(calls), len(saved)
        calls.append(None)
        inputs = tuple({saved[-1]} if saved else set())
        for _ in range(chance.randrange(1, 4)):
            if depth and chance.random() < 0.6:
                call(depth - 1)
            saved.append(
                chance.choice(saved) if saved and chance.random() < 0.3 else len(saved) + 1
            )
        if chance.random() < 0.9:
            calls[index] = CallSpan(
                start=start, end=len(saved), seconds=chance.random(), inputs=inputs
            )

    for _ in range(4):
        call(3)
    sizes = {number: chance.randrange(1, 100) for number in saved}
    return ForwardTrace(saved=tuple(saved), sizes=sizes, calls=tuple(calls))


def simulated_peak(trace: ForwardTrace, recomputed: frozenset[int]) -> int:
    """Return the peak by looking at what exists at each tensor of backward."""
    spans = [trace.span(index) for index in recomputed]

    def existing(end: int, again: CallSpan | None) -> set[int]:
        storages: set[int] = set()
        for position in range(end):
            span = next((each for each in spans if each.start <= position < each.end), None)
            if span is None or span is again:
                storages.add(trace.saved[position])
        for span in spans:
            if span.start < end or span is again:
                storages.update(span.inputs)
        return storages

    ends = [existing(len(trace.saved), None)]
    ends += [existing(span.end, span) for span in spans]
    return max(trace.bytes_of(storages) for storages in ends)


@pytest.mark.parametrize("seed", range(60))
def test_choices_fit_and_peaks_are_those_of_a_simulation(seed: int) -> None:
    trace = trace_of(seed)
    peaks = []
    for part in (1.0, 0.8, 0.6, 0.4, 0.0):
        budget = int(part * trace.saved_bytes)
        chosen = calls_to_recompute(trace, budget)
        spans = sorted((trace.span(index) for index in chosen), key=lambda span: span.start)
        assert all(a.end <= b.start for a, b in pairwise(spans))
        peak = trace.peak_bytes(chosen)
        assert peak == simulated_peak(trace, chosen)
        if part == 1.0:
            assert not chosen
        # no call more could be left out
        for index in chosen:
            fewer = trace.peak_bytes(chosen - {index})
            assert fewer > budget or fewer > peak
        peaks.append(peak)
    assert peaks[-1] <= min(peaks)


def test_the_cheapest_calls_are_recomputed() -> None:
    calls = [CallSpan(start=3 * i, end=3 * i + 3, seconds=s, inputs=(3 * i + 1,))
             for i, s in enumerate((5.0, 1.0, 3.0, 1.0, 9.0))]  # fmt: skip
    trace = ForwardTrace(
        saved=tuple(range(1, 16)), sizes=dict.fromkeys(range(1, 16), 10), calls=tuple(calls)
    )
    assert calls_to_recompute(trace, 130) == {1}
    assert calls_to_recompute(trace, 110) == {1, 3}
    assert calls_to_recompute(trace, 90) == {1, 2, 3}

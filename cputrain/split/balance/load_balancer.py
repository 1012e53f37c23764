"""Load balancing: shard sizes of devices, found in the script's own steps.

Steps with different shard sizes show each device's costs, and from these the sizes with which all
devices finish at once; further steps in turns decide whether that beats the fastest device alone.
The result is the same for any sizes, so every measured step is an ordinary training step.
"""

from __future__ import annotations

from statistics import median

from cputrain.measure.rounds import interleaved
from cputrain.record import Record
from cputrain.split.balance.auto_replicas import ShardLimits
from cputrain.split.balance.step_costs import NEVER, Cost, StepSamples, balanced
from cputrain.split.batch import divided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from cputrain.split.balance.auto_replicas import Sizes

    Trial = Generator[tuple[int, ...], tuple[float, tuple[float, ...]], None]
    """Yields samples by device; is sent total seconds and compute seconds by device."""

MIN_GAIN = 1.03
"""Speed-up from which the batch is sharded."""

WARM_UP = 2
"""Steps that are not counted after a change of shard sizes.

Threads wake up, and tensors of new sizes get memory whose pages are touched first.
"""

STEPS_PER_DIVISION = 3
"""Steps of each trial division; their median counts."""

STILL_FASTER = 0.9
"""Measuring goes on while a device's last step took less than this part of its fastest."""

MAX_STEPS = 6
"""Steps per division at most: the first ones allocate memory and load kernels."""

TURNS = 3
"""Turns, sharded and unsharded, that decide."""

STEPS_PER_TURN = 3
"""Steps per turn; their median counts."""

EASED_RATIO = 0.8
"""Part of its fitted shard that the slowest device gets in the eased division."""

SECOND_PROBE_FACTOR = 3
"""Size of the second probing shard relative to the first."""

MAX_FITS = 3
"""How often shard sizes are fitted after the probing shards, at most."""

FIRST_PROBE_DIVISOR = 16
"""The first probing shard of an unknown device is the batch size divided by this."""

CLOSE_RATIO = 1 / 32
"""A fit that moves less than this part of the batch is good enough."""

MAX_SHORT_BATCHES = 8
"""Smaller batches in a row after which the largest is forgotten."""

MIN_BATCH_RATIO = 0.9
"""Batches smaller than this fraction of the largest are not measured: an epoch's last batch."""

WATCH_INTERVAL = 16
"""Steps between two checks of the balance while it holds."""

DRIFT_RATIO = 0.2
"""Change of a device's time beyond another's, as a part of the step, that is drift."""

DRIFTED_CHECKS = 4
"""Checks in a row that must find drift before shard sizes are fitted again."""


class Fit(Record):
    """Result of load balancing."""

    sizes: tuple[int, ...]
    """Samples of each device."""

    fastest: int
    """Index of the device that is fastest alone."""

    predicted: float
    """Predicted speed-up of the best division over that device alone."""

    measured: float | None
    """Measured speed-up; None before it is measured, or if it was not worth measuring."""

    costs: tuple[Cost, ...]
    """Cost model of each device."""

    is_promise: bool = False
    """Whether this is reported before the division is measured."""

    is_forced: bool = False
    """Whether it is sharded only because no device has memory for all of it."""

    @property
    def divides(self) -> bool:
        """Whether several devices have samples because that is faster."""
        return sum(map(bool, self.sizes)) > 1 and not self.is_forced


class LoadBalancer:
    """Picks shard sizes with which all devices finish at once, or the fastest device alone."""

    def __init__(
        self, replicas: Sequence[int], home: Callable[[], int | None], on_fit: Callable[[Fit], None]
    ) -> None:
        """Balance devices with `replicas` replicas each.

        Args:
            replicas: Number of replicas on each device.
            home: Returns the index of the device that holds the model; None if it is none of them.
            on_fit: Called with each Fit.
        """
        self._replicas = tuple(replicas)
        self._find_home = home
        self._home_index = home()
        self._on_fit = on_fit
        self._largest_batch = 0
        self._num_steps = 0
        self._num_drifted = 0
        self._num_short = 0
        self._limits = ShardLimits(len(replicas))
        self._num_to_skip = WARM_UP
        self._trial: Trial | None = None
        self._division: tuple[int, ...] = ()
        self._usual_compute_s: Sequence[float] = ()
        """Compute seconds of each device with the current shard sizes."""
        self.fit: Fit | None = None

    @property
    def _home(self) -> int:
        """Index of the device that gets whole batches before anything is known."""
        return self._home_index or 0

    @property
    def is_measuring(self) -> bool:
        """Whether shard sizes are being measured."""
        return self.fit is None or self._trial is not None

    @property
    def needs_times(self) -> bool:
        """Whether the next call is to be timed: while measuring, and at intervals later."""
        should_check = self._num_steps % WATCH_INTERVAL == 0 or self._num_drifted > 0
        return self.is_measuring or (self.fit is not None and self.fit.divides and should_check)

    @property
    def is_undivided(self) -> bool:
        """Whether the fastest choice is the model's device alone, and the model is still there."""
        if self.fit is None or self.is_measuring or self.fit.divides or self.fit.is_forced:
            return False
        return self.fit.fastest == self._home_index == self._find_home()

    def sizes(self, size: int, *, trains: bool) -> Sizes:
        """Return the shard size of each replica."""
        if self._home_index != self._find_home():  # the model was moved to another device
            self._home_index, self.fit, self._trial = self._find_home(), None, None
        if self.is_measuring and trains and size < MIN_BATCH_RATIO * self._largest_batch:
            self._num_short += 1
            if self._num_short > MAX_SHORT_BATCHES:  # the largest batch was an exception
                self._largest_batch, self._trial, self._num_short = 0, None, 0
        is_small = size < 2 * len(self._replicas) or size < MIN_BATCH_RATIO * self._largest_batch
        if not trains or (self.is_measuring and is_small):
            return self._of_replicas(self._within(self._known_division(size)))
        self._num_steps += 1
        self._num_short = 0
        if not self.is_measuring:
            return self._of_replicas(self._within(self._known_division(size)))
        if MIN_BATCH_RATIO * size > self._largest_batch or self._trial is None:
            self._largest_batch = size
            self._trial = self._search(size)
            self._division = next(self._trial)
            self._num_to_skip = WARM_UP
        return self._measured_sizes(size)

    def _measured_sizes(self, size: int) -> Sizes:
        """Return the shard sizes that are measured now."""
        return self._of_replicas(self._within(_scaled(self._division, size)))

    def limit(self, replica: int, limit: int) -> bool:
        """Limit each replica of this replica's device to `limit` samples."""
        device = 0
        while replica >= self._replicas[device]:
            replica -= self._replicas[device]
            device += 1
        if not self._limits.set(device, limit * self._replicas[device]):
            return False
        self._trial = None  # measurements no longer apply
        return True

    def _within(self, sizes: Sizes) -> Sizes:
        return self._limits.within(sizes, self._home)

    def _known_division(self, size: int) -> tuple[int, ...]:
        """Return the shard sizes of devices for a call that is not measured."""
        if self.fit is None:
            return self._all_to(self._home, size)
        if not self.fit.divides:
            return self._all_to(self.fit.fastest, size)
        if size == sum(self.fit.sizes):
            return self.fit.sizes
        return balanced(self.fit.costs, size, self._home_index)

    def _all_to(self, device: int, size: int) -> tuple[int, ...]:
        return tuple(size if number == device else 0 for number in range(len(self._replicas)))

    def _of_replicas(self, sizes: Sequence[int]) -> Sizes:
        """Divide each device's samples evenly among its replicas."""
        result: list[int] = []
        for size, count in zip(sizes, self._replicas, strict=True):
            replica_sizes = divided(size, [1.0] * count) if size else ()
            result += [*replica_sizes, *[0] * (count - len(replica_sizes))]
        return tuple(result)

    def _device_sizes(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the samples of each device, given those of each replica."""
        return tuple(map(sum, self._by_device(sizes)))

    def _by_device(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """Group values of replicas by device."""
        groups, offset = [], 0
        for count in self._replicas:
            groups.append(values[offset : offset + count])
            offset += count
        return groups

    def record(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
        """Record a step, if it used the division that is measured now."""
        remaining = iter(busy)
        busy_by_device = self._by_device([next(remaining) if size else 0.0 for size in sizes])
        # a device takes as long as its slowest replica
        device_busy = tuple(map(max, busy_by_device))
        if not self.is_measuring:
            self._watch(sizes, device_busy, seconds)
            return
        size = sum(sizes)
        if self._trial is None or sizes != self._measured_sizes(size):
            return
        if size < MIN_BATCH_RATIO * self._largest_batch:
            return
        if self._num_to_skip:
            self._num_to_skip -= 1
            return
        scale = self._largest_batch / size
        previous = self._division
        try:
            self._division = self._trial.send(
                (seconds * scale, tuple(busy_s * scale for busy_s in device_busy))
            )
        except StopIteration:
            self._trial = None
            return
        if self._division != previous:
            self._num_to_skip = WARM_UP

    def _watch(self, sizes: Sizes, busy: Sequence[float], seconds: float) -> None:
        """Fit again after repeated checks found a device slower, or faster, relative to another."""
        if self.fit is None or not self.fit.divides:  # this step started before the last fit
            return
        slowdowns = [
            busy_s - usual_s * cost.busy(samples) / cost.busy(fitted_samples)
            for busy_s, usual_s, cost, samples, fitted_samples in zip(
                busy,
                self._usual_compute_s,
                self.fit.costs,
                self._device_sizes(sizes),
                self.fit.sizes,
                strict=True,
            )
            if samples and fitted_samples and cost.fixed < NEVER.fixed
        ]
        has_drifted = len(slowdowns) > 1 and max(slowdowns) - min(slowdowns) > DRIFT_RATIO * seconds
        self._num_drifted = self._num_drifted + 1 if has_drifted else 0
        if self._num_drifted >= DRIFTED_CHECKS:
            self._num_drifted = 0
            self._trial = self._search(self._largest_batch or sum(sizes))
            self._division = next(self._trial)
            self._num_to_skip = WARM_UP

    # -- the search

    def _search(self, size: int) -> Trial:
        """Generate the divisions to measure, and report the result."""
        count, home = len(self._replicas), self._home
        steps = StepSamples()
        home_seconds = yield from self._measure(self._all_to(home, size), steps)
        # two probing shards of every other device, both small in case the device is slow
        probe = max(1, size // FIRST_PROBE_DIVISOR)
        candidates = [number for number in range(count) if number != home]
        division: tuple[int, ...] = ()
        for samples in (probe, SECOND_PROBE_FACTOR * probe):
            samples = min(samples, size // count)
            division = tuple(
                samples * (number in candidates)
                + (size - samples * len(candidates)) * (number == home)
                for number in range(count)
            )
            yield from self._measure(division, steps)
            # (a device limited to no samples is not measured)
            candidates = [
                number
                for number in candidates
                if (points := steps.points(number)) and points[-1][1] < home_seconds
            ]
            if not candidates:
                break
        for _ in range(MAX_FITS):
            fitted = balanced(self._fit_costs(steps, candidates), size, self._home_index)
            if sum(map(bool, fitted)) == 1 or _are_close(fitted, division, CLOSE_RATIO * size):
                break
            division = fitted
            yield from self._measure(division, steps)
        yield from self._decide(size, home_seconds, steps, candidates)

    def _fit_costs(self, steps: StepSamples, candidates: Sequence[int]) -> tuple[Cost, ...]:
        """Return the costs of the home device and of devices that are still candidates."""
        return tuple(
            cost if number == self._home or number in candidates else NEVER
            for number, cost in enumerate(steps.costs(len(self._replicas)))
        )

    def _decide(
        self, size: int, home_seconds: float, steps: StepSamples, candidates: Sequence[int]
    ) -> Trial:
        """Measure in turns what is predicted to pay: another device alone, then sharding."""
        costs = self._fit_costs(steps, candidates)
        single_seconds = [cost.seconds(size) for cost in costs]
        single_seconds[self._home] = home_seconds
        fastest = single_seconds.index(min(single_seconds))
        if home_seconds < MIN_GAIN * single_seconds[fastest]:
            fastest = self._home
        if fastest != self._home:
            home_division, fastest_division = (
                self._all_to(device, size) for device in (self._home, fastest)
            )
            if (yield from self._compare_in_turns(home_division, [fastest_division], steps))[
                1
            ] is None:
                fastest = self._home
        single_division = self._all_to(fastest, size)
        division = balanced(costs, size, self._home_index)
        predicted, measured, winner = 1.0, None, None
        if sum(map(bool, division)) > 1:
            sharded_seconds = max(cost.seconds(n) for cost, n in zip(costs, division, strict=True))
            predicted = single_seconds[fastest] / sharded_seconds
        fit = Fit(
            sizes=self._within(division), fastest=fastest, predicted=predicted, measured=None,
            costs=costs, is_promise=True,
        )  # fmt: skip
        if predicted >= MIN_GAIN:
            self._on_fit(fit)
            candidate_divisions = [division, _eased(division, costs, fastest)]
            measured, winner = yield from self._compare_in_turns(
                single_division, candidate_divisions, steps
            )
        # set all results together: until then the previous fit stays valid
        sizes = self._within(winner or single_division)
        self._usual_compute_s, self._num_drifted = steps.usual(sizes), 0
        self.fit = fit.replace(
            sizes=sizes, measured=measured, costs=self._fit_costs(steps, candidates),
            is_promise=False, is_forced=winner is None and sizes != single_division,
        )  # fmt: skip
        self._on_fit(self.fit)

    def _compare_in_turns(
        self, baseline: tuple[int, ...], candidates: Sequence[tuple[int, ...]], steps: StepSamples
    ) -> Generator[
        tuple[int, ...], tuple[float, tuple[float, ...]], tuple[float, tuple[int, ...] | None]
    ]:
        """Measure in turns; return the best speed-up, and its division if it is no noise."""
        times: dict[tuple[int, ...], list[float]] = {sizes: [] for sizes in (baseline, *candidates)}
        yield from self._measure_turns(times, steps)
        gains = {
            sizes: median(
                [
                    baseline_s / candidate_s
                    for baseline_s, candidate_s in zip(times[baseline], times[sizes], strict=True)
                ]
            )
            for sizes in candidates
        }
        # its slowest turn must be no slower than the baseline's median: that is not noise
        baseline_median = median(times[baseline])
        clear = [
            sizes
            for sizes in candidates
            if gains[sizes] >= MIN_GAIN and max(times[sizes]) <= baseline_median
        ]
        best = max(clear or candidates, key=lambda sizes: gains[sizes])
        gain = gains[best]
        if gain >= MIN_GAIN and best not in clear:  # further turns decide, by their total time
            more_times: dict[tuple[int, ...], list[float]] = {baseline: [], best: []}
            yield from self._measure_turns(more_times, steps)
            gain = sum(more_times[baseline]) / sum(more_times[best])
        return gain, best if gain >= MIN_GAIN else None

    def _measure_turns(
        self, times: dict[tuple[int, ...], list[float]], steps: StepSamples
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], None]:
        """Measure each of these divisions in a few more turns."""
        for _, sizes in interleaved(times, TURNS):
            times[sizes].append((yield from self._measure(sizes, steps, STEPS_PER_TURN)))

    def _measure(
        self, division: tuple[int, ...], steps: StepSamples, num_steps: int = STEPS_PER_DIVISION
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], float]:
        """Measure a division; return its median step time and store the devices' times."""
        division = self._within(division)
        times: list[float] = []
        busy: list[tuple[float, ...]] = []
        while len(times) < num_steps or (len(times) < MAX_STEPS and _is_still_falling(busy)):
            seconds, busy_s = yield division
            times.append(seconds)
            busy.append(busy_s)
        del times[:-num_steps], busy[:-num_steps]
        seconds = median(times)
        steps.add(
            division, seconds, [median(device_times) for device_times in zip(*busy, strict=True)]
        )
        return seconds


def _is_still_falling(busy: Sequence[Sequence[float]]) -> bool:
    """Return whether any device was much faster in the last step than in all steps before."""
    *before, last = busy
    return any(
        latest < STILL_FASTER * min(earlier) for latest, *earlier in zip(last, *before, strict=True)
    )


def _eased(division: Sequence[int], costs: Sequence[Cost], fastest: int) -> tuple[int, ...]:
    """Return a division with fewer samples for the slowest device.

    Where its step times vary, all devices wait for its long steps, and its short ones gain nothing.
    """
    slowest = max(
        (number for number, size in enumerate(division) if size and number != fastest),
        key=lambda number: costs[number].per_sample,
    )
    result = list(division)
    result[slowest] = int(EASED_RATIO * division[slowest])
    result[fastest] += division[slowest] - result[slowest]
    return tuple(result)


def described(fit: Fit, names: Sequence[str]) -> str:
    """Describe a fit in words, before or after it is measured."""
    fastest_name = names[fit.fastest]
    parts = [f"{n} on {name}" for n, name in zip(fit.sizes, names, strict=True) if n]
    division = ", ".join(parts)
    if fit.is_promise:
        return (
            f"{division}: predicted to be {fit.predicted:.2f} times as fast as {fastest_name} alone"
        )
    if fit.is_forced:
        return f"{division}: there is no memory for more where all of it would be faster"
    if len(parts) > 1:
        return f"{division}: {fit.measured:.2f} times as fast as {fastest_name} alone"
    if fit.measured is None:
        gain = "no faster" if fit.predicted <= 1.0 else f"{fit.predicted:.2f} times as fast"
        return f"{fastest_name} alone: dividing is predicted to be {gain}"
    return (
        f"{fastest_name} alone: dividing was {fit.measured:.2f} times as fast, which is too little"
    )


def _are_close(first: Sequence[int], second: Sequence[int], max_difference: float) -> bool:
    return all(abs(a - b) <= max_difference for a, b in zip(first, second, strict=True))


def _scaled(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Scale shard sizes to another batch size."""
    if sum(sizes) == size:
        return sizes
    nonempty = [number for number, value in enumerate(sizes) if value]
    parts = divided(size, [sizes[number] for number in nonempty])
    result = [0] * len(sizes)
    for number, value in zip(nonempty, parts, strict=False):
        result[number] = value
    return tuple(result)

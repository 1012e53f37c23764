"""What each device has of a batch: fitted from steps, and one device alone where that is faster."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from cputrain.split.balance.auto_replicas import FixedShards, ShardLimits
from cputrain.split.balance.load_balancer import (
    DRIFTED_CHECKS,
    MIN_GAIN,
    STEPS_PER_TURN,
    WARM_UP,
    WATCH_INTERVAL,
    Fit,
    LoadBalancer,
    described,
)
from cputrain.split.balance.step_costs import Cost, balanced, fitted

SIZE = 256


def after(costs, *, members=None, home=0, noise=0.0, seed=0, size=SIZE, gap=0.0):
    """What is found, and in how many steps, where devices take so long."""
    told = []
    choice = LoadBalancer(members or [1] * len(costs), lambda: home, told.append)
    steps = train(choice, costs, lambda: told, noise=noise, seed=seed, size=size, gap=gap)
    return choice, told[-1], steps


def train(choice, costs, told, *, noise=0.0, seed=0, size=SIZE, most=200, gap=0.0):
    """With a `gap`, a step takes up to so many times as long beside the work of the devices."""
    generator = random.Random(seed)
    before = len(told())
    for step in range(most):
        if len(told()) > before and not choice.is_measuring:
            return step
        go_on(choice, costs, size=size, generator=generator, noise=noise, gap=gap)
    raise AssertionError(f"nothing was found in {most} steps")


def go_on(choice, costs, *, size=SIZE, generator=random, noise=0.0, gap=0.0):
    """One step."""
    sizes = choice.sizes(size, trains=True)
    assert sum(sizes) == size
    if choice.needs_times:
        seconds, busy = step_of(costs, sizes, choice._replicas, generator, noise, choice._home)
        choice.record(sizes, seconds * generator.uniform(1, 1 + gap), busy)


def step_of(costs, sizes, members, generator, noise, home=0):
    """How long it takes, and how long each member is busy."""
    divides = sum(map(bool, sizes)) > 1
    busy, ends, at = [], [], 0
    for number, (cost, count) in enumerate(zip(costs, members, strict=True)):
        mine = noise if isinstance(noise, float) else noise[number]
        for n in filter(None, sizes[at : at + count]):
            busy.append(cost.busy(n * count) * generator.uniform(1, 1 + mine))
            ends.append(busy[-1] + cost.overhead * (divides or number != home))
        at += count
    return max(ends), busy


def test_a_device_that_is_slow_at_first_is_measured_on():
    """It asks for memory, and loads kernels: its first steps tell nothing."""
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    gpu, cpu = Cost(fixed=0.004, per_sample=0.0001), Cost(fixed=0.006, per_sample=0.0003)
    slow = iter([0.5, 0.2, 0.1, 0.05, 0.02])
    while choice.is_measuring:
        sizes = choice.sizes(SIZE, trains=True)
        busy = [cost.seconds(n) for cost, n in zip((gpu, cpu), sizes, strict=True) if n]
        if sizes[1]:
            busy[1] += next(slow, 0.0)
        choice.record(sizes, max(busy), busy)
    assert all(told[-1].sizes)
    assert told[-1].measured > 1.1


def throughput(costs, sizes, noise=0.0, steps=1):
    generator = random.Random(0)
    members = [1] * len(costs)
    times = [step_of(costs, sizes, members, generator, noise)[0] for _ in range(steps)]
    return sum(sizes) * steps / sum(times)


@pytest.mark.parametrize("ratio", [1 / 3, 1 / 2, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.05])
def test_shares_come_near_the_sum_of_both(ratio, fixed):
    """Fixed costs are paid by both; what is left is divided."""
    costs = [Cost(fixed=fixed, per_sample=0.001), Cost(fixed=fixed, per_sample=0.001 / ratio)]
    choice, fit, steps = after(costs)
    best = max(throughput(costs, (n, SIZE - n)) for n in range(SIZE + 1))
    assert throughput(costs, choice.sizes(SIZE, trains=True)) >= 0.97 * best
    assert steps <= 90
    assert fit.measured == pytest.approx(fit.predicted, rel=0.05)


@pytest.mark.parametrize("home", [0, 1])
def test_a_device_that_is_thirty_times_as_fast_is_alone(home):
    costs = [
        Cost(fixed=0.002, per_sample=0.0001, overhead=0.001),
        Cost(fixed=0.002, per_sample=0.003, overhead=0.001),
    ]
    choice, fit, steps = after(costs, home=home)
    assert choice.sizes(SIZE, trains=True) == (SIZE, 0)
    assert choice.is_undivided == (home == 0)  # or there is something to be carried, each time
    assert fit.predicted < MIN_GAIN
    assert fit.measured is None
    assert steps <= 70


@pytest.mark.parametrize("seed", range(10))
def test_another_device_alone_must_be_faster_in_turns(seed):
    """Little of a batch was seen on it: what is more than that may take longer."""

    class Falls(Cost):
        def seconds(self, samples):
            return super().seconds(samples) * (1 if samples < SIZE / 2 else 5)

    costs = [Cost(fixed=0.0, per_sample=0.001), Falls(fixed=0.0, per_sample=0.0005)]
    choice, _, _ = after(costs, noise=0.05, seed=seed)
    sizes = choice.sizes(SIZE, trains=True)
    assert throughput(costs, sizes) >= 0.95 * throughput(costs, (SIZE, 0))


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_taken_for_gain(seed):
    costs = [
        Cost(fixed=0.0, per_sample=0.001, overhead=0.05),
        Cost(fixed=0.05, per_sample=0.004, overhead=0.05),
    ]
    choice, _, _ = after(costs, noise=0.1, seed=seed)
    assert choice.sizes(SIZE, trains=True) == (SIZE, 0)


@pytest.mark.parametrize("seed", range(10))
def test_a_clear_gain_is_found_in_noise(seed):
    costs = [Cost(fixed=0.002, per_sample=0.001), Cost(fixed=0.005, per_sample=0.0015)]
    choice, _, _ = after(costs, noise=0.1, seed=seed)
    best = max(throughput(costs, (n, SIZE - n)) for n in range(SIZE + 1))
    assert throughput(costs, choice.sizes(SIZE, trains=True)) >= 0.85 * best


def test_what_dividing_costs_beyond_the_devices_is_part_of_the_prediction():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.002)]
    _, cheap, _ = after(costs)
    choice, dear, _ = after([cost.replace(overhead=0.1) for cost in costs])
    assert cheap.predicted == pytest.approx(1.5, rel=0.02)
    assert dear.predicted <= 1.0
    assert choice.sizes(SIZE, trains=True) == (SIZE, 0)


@pytest.mark.parametrize("beyond", [0.005, 0.02])
@pytest.mark.parametrize("each", [0.0005, 0.001, 0.003])
def test_a_device_whose_work_is_waited_for_longer_has_less(each, beyond):
    """Its gradients have a longer way: being busy as long as the other, it would be the last."""
    costs = [
        Cost(fixed=0.003, per_sample=0.001),
        Cost(fixed=0.003, per_sample=each, overhead=beyond),
    ]
    choice, fit, _ = after(costs)
    best = max(throughput(costs, (SIZE - n, n)) for n in range(SIZE + 1))
    assert throughput(costs, choice.sizes(SIZE, trains=True)) >= 0.98 * best
    assert fit.measured == pytest.approx(fit.predicted, rel=0.03)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("each", [0.0005, 0.001, 0.002])
def test_a_gap_that_varies_is_not_the_slower_devices(seed, each):
    """Where it is long, the device that was the last still was."""
    costs = [Cost(fixed=0.003, per_sample=0.001), Cost(fixed=0.003, per_sample=each)]
    choice, _, _ = after(costs, gap=0.1, seed=seed)
    best = max(throughput(costs, (SIZE - n, n)) for n in range(SIZE + 1))
    assert throughput(costs, choice.sizes(SIZE, trains=True)) >= 0.9 * best


@pytest.mark.parametrize("beyond", [0.02, 0.05, 0.08, 0.1])
def test_another_device_alone_is_waited_for_as_well(beyond):
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.0005, overhead=beyond)]
    choice, _, _ = after(costs)
    for size in (SIZE, 10):
        best = max(throughput(costs, (size - n, n)) for n in range(size + 1))
        assert throughput(costs, choice.sizes(size, trains=True)) >= 0.97 * best


def test_a_device_of_uneven_steps_has_less():
    """All wait for its long ones; its short ones are of no use."""
    costs = [Cost(fixed=0.003, per_sample=0.0006), Cost(fixed=0.005, per_sample=0.0015)]
    noise = (0.0, 1.0)
    speeds = [throughput(costs, (SIZE - n, n), noise, steps=300) for n in range(SIZE)]
    found = [after(costs, noise=noise, seed=seed)[0] for seed in range(40)]
    chosen = [speeds[choice.sizes(SIZE, trains=True)[1]] for choice in found]
    assert sum(chosen) / len(chosen) >= 0.975 * max(speeds)


@pytest.mark.parametrize(("slow_turns", "pays"), [({0}, True), (set(range(0, 99, 2)), False)])
def test_turns_that_disagree_are_followed_by_more(slow_turns, pays):
    """One that was disturbed loses no clear gain; what is slow time and again is no gain."""
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    told, divided = [], 0
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    while choice.is_measuring:
        sizes = choice.sizes(SIZE, trains=True)
        seconds, busy = step_of(costs, sizes, [1, 1], random.Random(0), 0.0)
        if told and all(sizes):
            seconds *= 4 if divided // (WARM_UP + STEPS_PER_TURN) // 2 in slow_turns else 1
            divided += 1
        choice.record(sizes, seconds, busy)
    assert told[0].is_promise
    assert not told[-1].is_promise
    assert all(told[-1].sizes) == pays
    assert (told[-1].measured > MIN_GAIN) == pays


def test_three_devices_and_one_that_is_not_worth_it():
    costs = [
        Cost(fixed=0.0, per_sample=0.001),
        Cost(fixed=0.0, per_sample=0.001),
        Cost(fixed=9.0, per_sample=0.0001),
    ]
    choice, _, _ = after(costs)
    sizes = choice.sizes(SIZE, trains=True)
    assert sizes[2] == 0
    assert sizes[0] == pytest.approx(SIZE / 2, abs=4)


def test_replicas_of_a_device_have_even_parts_of_its_share():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    choice, _, _ = after(costs, members=[1, 3])
    sizes = choice.sizes(SIZE, trains=True)
    assert sizes[0] == pytest.approx(SIZE / 2, abs=4)
    assert max(sizes[1:]) - min(sizes[1:]) <= 1


def test_other_batches_have_shares_of_their_own():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.02, per_sample=0.001)]
    choice, _, _ = after(costs)
    assert choice.sizes(64, trains=True)[0] > 40  # the fixed cost counts for more
    assert choice.sizes(10, trains=True) == (10, 0)
    assert sum(choice.sizes(64, trains=False)) == 64


def test_shares_are_fitted_again_when_they_have_drifted():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    train(choice, costs, lambda: told)
    before = choice.sizes(SIZE, trains=True)
    for _ in range(500):  # nothing has changed
        sizes = choice.sizes(SIZE, trains=True)
        assert sizes == before
        if choice.needs_times:
            busy = [cost.seconds(n) for cost, n in zip(costs, sizes, strict=True)]
            choice.record(sizes, max(busy), busy)
    slower = [costs[0], Cost(fixed=0.0, per_sample=0.003)]
    steps = 0
    while not choice.is_measuring:
        steps += 1
        go_on(choice, slower)
    assert steps <= WATCH_INTERVAL + DRIFTED_CHECKS
    train(choice, slower, lambda: told)
    assert choice.sizes(SIZE, trains=True)[1] == pytest.approx(SIZE / 4, abs=6)


@pytest.mark.parametrize(
    "works",
    [
        (lambda n: 0.001 * n * (1.5 if n > 230 else 1), lambda n: 0.003 * n),
        (lambda n: 4e-6 * n * n + 1e-4 * n, lambda n: 1e-5 * n * n),
    ],
)
def test_devices_that_are_not_as_the_line_are_not_fitted_again(works):
    """What is looked at is whether they take what they took."""
    devices = [SimpleNamespace(busy=work, overhead=0.0) for work in works]
    choice, _, _ = after(devices, noise=0.02)
    assert all(choice.sizes(SIZE, trains=True))
    generator = random.Random(0)
    for _ in range(1000):
        go_on(choice, devices, generator=generator, noise=0.02)
        assert not choice.is_measuring


def test_what_was_found_holds_until_something_else_is():
    """Shares are fitted again, and that is given up, as batches are short."""
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    slower = [costs[0], Cost(fixed=0.0, per_sample=0.002)]
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    train(choice, costs, lambda: told)
    while len(told) == 2:  # until a division is promised once more
        go_on(choice, slower)
    assert told[-1].is_promise
    for _ in range(12):
        go_on(choice, slower, size=20)
    assert not choice.is_undivided
    assert choice.sizes(SIZE, trains=True) == (128, 128)
    steps = 0
    while not choice.is_measuring:  # it is looked at again, whatever there is
        steps += 1
        go_on(choice, slower, size=64)
    assert steps <= WATCH_INTERVAL + DRIFTED_CHECKS
    go_on(choice, slower, size=3)


def test_the_models_own_device_has_little_memory():
    """It is the fastest alone, and cannot be."""
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.02)]
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    choice.sizes(SIZE, trains=True)
    choice.limit(0, 200)
    train(choice, costs, lambda: told)
    assert not choice.is_undivided
    assert choice.sizes(SIZE, trains=True) == (200, SIZE - 200)
    assert told[-1].sizes == (200, SIZE - 200)
    assert told[-1].is_forced
    assert not told[-1].is_promise


def test_a_model_that_is_on_no_device_of_them_is_always_sent():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.1)]
    choice, fit, _ = after(costs, home=None)
    assert choice.sizes(SIZE, trains=True) == (SIZE, 0)
    assert fit.fastest == 0
    assert not choice.is_undivided


def test_times_that_no_clock_has_seen():
    costs = [Cost(fixed=0.001, per_sample=1e-33), Cost(fixed=0.001, per_sample=1e-33)]
    assert sum(balanced(costs, SIZE, 0)) == SIZE
    assert fitted([(16, 0.0), (48, 0.0)]).samples(1.0) > 0


def test_batches_of_all_sizes_come_to_an_end():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    generator = random.Random(0)
    for step in range(2000):
        size = generator.randint(1, 60) + step // 30
        sizes = choice.sizes(size, trains=True)
        assert sum(sizes) == size
        if choice.needs_times:
            busy = [cost.seconds(n) for cost, n in zip(costs, sizes, strict=True) if n]
            choice.record(sizes, max(busy), busy)
    assert told
    assert not choice.is_measuring
    assert choice.sizes(60, trains=True) == (30, 30)


def test_a_first_batch_that_is_larger_than_the_rest_is_forgotten():
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    choice.sizes(400, trains=True)
    train(choice, costs, lambda: told, size=100)
    assert choice.sizes(100, trains=True)[0] == pytest.approx(50, abs=2)


def test_batches_with_fewer_samples_than_devices_are_not_measured():
    choice = LoadBalancer([1] * 4, lambda: 1, lambda _: None)
    assert choice.sizes(3, trains=True) == (0, 3, 0, 0)


@pytest.mark.parametrize("after_steps", [0, 3, 7, 100])
def test_a_device_with_little_memory_has_what_fits(after_steps):
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.0002)]
    told = []
    choice = LoadBalancer([1, 2], lambda: 0, told.append)
    for _ in range(after_steps):
        sizes = choice.sizes(SIZE, trains=True)
        if choice.needs_times:
            busy = [costs[0].seconds(sizes[0]), *(costs[1].seconds(2 * n) for n in sizes[1:])]
            busy = [one for one, n in zip(busy, sizes, strict=True) if n]
            choice.record(sizes, max(busy), busy)
    choice.limit(2, 40)
    if choice.is_measuring:
        train(choice, costs, lambda: told)
        assert choice.sizes(SIZE, trains=True) == (SIZE - 80, 40, 40)


@pytest.mark.parametrize("each", [0.001, 0.1])
def test_a_model_that_is_moved_is_measured_anew(each):
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=each)]
    told, at = [], [0]
    choice = LoadBalancer([1, 1], lambda: at[0], told.append)
    train(choice, costs, lambda: told)
    assert not choice.is_measuring
    assert choice.is_undivided == (each == 0.1)
    at[0] = 1
    assert not choice.is_undivided
    assert choice.sizes(SIZE, trains=True) == (0, SIZE)
    assert choice.is_measuring


def test_a_limit_is_set_once_and_never_to_all():
    choice = FixedShards([1.0, 1.0])
    assert choice.limit(0, 3)
    assert choice.sizes(10, trains=True) == (3, 7)
    assert not choice.limit(0, 1)
    assert not choice.limit(1, 2)
    assert choice.sizes(4, trains=True) == (2, 2)
    limits = ShardLimits(3)
    assert limits.set(0, 3)
    assert limits.within((5, 0, 5)) == (3, 0, 7)


@pytest.mark.parametrize("size", [5, 16, 31, 256])
def test_a_device_without_room_for_one_sample_has_none(size):
    costs = [Cost(fixed=0.0, per_sample=0.001), Cost(fixed=0.0, per_sample=0.001)]
    told = []
    choice = LoadBalancer([1, 1], lambda: 0, told.append)
    choice.sizes(size, trains=True)
    assert choice.limit(1, 0)
    train(choice, costs, lambda: told, size=size)
    assert choice.sizes(size, trains=True) == (size, 0)


def test_a_line_is_found_through_points_of_noise():
    cost = fitted([(16, 0.026), (48, 0.058), (128, 0.138)])
    assert (cost.fixed, cost.per_sample) == (pytest.approx(0.01), pytest.approx(0.001))
    assert fitted([(16, 0.032)]) == Cost(fixed=0.0, per_sample=0.002)
    assert fitted([(16, 0.04), (48, 0.03)]).fixed == 0.0


@pytest.mark.parametrize("home", [0, 1, None])
@pytest.mark.parametrize("size", [1, 2, 7, 256])
def test_every_sample_is_somewhere(size, home):
    for fixed in (0.0, 0.01, 1.0):
        costs = [Cost(fixed=fixed, per_sample=0.001), Cost(fixed=0.0, per_sample=0.01)]
        assert sum(balanced(costs, size, home)) == size


def test_what_is_said_of_a_fit():
    names = ["cuda:0", "cpu"]
    fit = Fit(sizes=(3, 1), fastest=0, predicted=1.25, measured=None, costs=())
    promised = described(fit.replace(is_promise=True), names)
    assert promised == ("3 on cuda:0, 1 on cpu: predicted to be 1.25 times as fast as cuda:0 alone")
    kept = described(fit.replace(measured=1.2), names)
    assert kept == "3 on cuda:0, 1 on cpu: 1.20 times as fast as cuda:0 alone"
    alone = fit.replace(sizes=(4, 0))
    assert described(alone.replace(measured=1.01), names) == (
        "cuda:0 alone: dividing was 1.01 times as fast, which is too little"
    )
    assert "predicted to be no faster" in described(alone.replace(predicted=1.0), names)
    assert "no memory for more" in described(fit.replace(is_forced=True), names)

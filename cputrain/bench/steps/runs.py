"""Time the steps of one network in several ways, interleaved in one process."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch

from cputrain import Stack, Step
from cputrain.bench.steps.cases import POPULATIONS
from cputrain.bench.steps.jax_process import JaxProcess
from cputrain.bench.steps.networks import NETWORKS, Network
from cputrain.measure.rounds import interleaved
from cputrain.runtime.recorded_steps import RecordedSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from torch import Tensor, nn

TIMED_S = 0.05
"""Target duration of a timed series of steps in seconds."""

NUM_WARM_UP = 40
"""Steps before a way is timed: in the first round, recorded loops are still compared with eager."""

NUM_COMPARED = 20
"""Losses of the first steps that are compared with those of eager steps."""


def run(name: str, ways: Sequence[str], num_threads: int, rounds: int, jax: str) -> dict[str, Any]:
    """Return step times of each way in each round, compile times, and differences of losses."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(1)
    batch = NETWORKS[name].batch()
    steps: dict[str, TimedStep] = {}
    losses: dict[str, list[float]] = {}
    compile_seconds: dict[str, float] = {}
    for way in ways:
        begin = time.perf_counter()
        if way == "jax":
            jax_process = JaxProcess(
                jax, _make_model(name), NETWORKS[name].loss, batch, num_threads
            )
            losses[way], compile_seconds[way] = jax_process.losses, time.perf_counter() - begin
            continue
        step = steps[way] = _make_step(name, way, batch)
        begin = time.perf_counter()
        torch.manual_seed(2)
        with step.active():
            losses[way] = []
            for _ in range(NUM_COMPARED):
                losses[way].append(step.take().item())
                step.wait()
        compile_seconds[way] = time.perf_counter() - begin
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _, way in interleaved(ways, rounds):
        if way == "jax":
            seconds[way].append(jax_process.seconds(TIMED_S))
            continue
        with steps[way].active():
            for _ in range(NUM_WARM_UP):
                steps[way].take()
            begin, count = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - begin) < TIMED_S:
                steps[way].take()
                count += 1
        seconds[way].append(elapsed / count)
    expected = losses[ways[0]]
    return {
        "seconds": seconds,
        "compile_seconds": compile_seconds,
        "loss_differences": {
            way: max(map(_relative_difference, values, expected)) for way, values in losses.items()
        },
    }


def _relative_difference(loss: float, expected: float) -> float:
    return abs(loss - expected) / abs(expected)


class TimedStep(NamedTuple):
    """A way to take steps."""

    take: Callable[[], Tensor]
    """Takes one."""

    wait: Callable[[], None] = lambda: None
    """Waits until it is compiled."""

    active: Callable[[], AbstractContextManager[None]] = nullcontext
    """Returns the context in which it is taken so."""


def _make_step(name: str, way: str, batch: tuple[Any, Tensor]) -> TimedStep:
    """Return a way to take steps."""
    network = NETWORKS[name]
    if name in POPULATIONS:
        return _make_population_step(network, way, batch, POPULATIONS[name])
    model = _make_model(name)
    optimizer = network.optimizer(
        model.parameters(), lr=3e-4, fused=True if way in {"fused", "compiled"} else None
    )
    inputs, targets = batch
    if way in {"step", "replayed"}:
        step = Step(model, network.loss, optimizer, use_compiler=way == "step")
        return TimedStep(lambda: step(inputs, targets), step.wait)
    forward: Any = torch.compile(model) if way == "compiled" else model
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)

    def take_step() -> Tensor:
        loss = network.loss(forward(*arguments), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if way != "recorded":
        return TimedStep(take_step)
    recorded = RecordedSteps(torch)
    recorded.undo()

    @contextmanager
    def record() -> Iterator[None]:
        recorded.redo()
        try:
            yield
        finally:
            recorded.undo()

    return TimedStep(take_step, recorded.recorder.wait, record)


def _make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name].make()


def _make_population_step(
    network: Network, way: str, batch: tuple[Any, Tensor], number: int
) -> TimedStep:
    """Return a way to take a step of several networks with one batch."""
    torch.manual_seed(0)
    models = [network.make() for _ in range(number)]
    fused = True if way == "fused" else None
    optimizers = [network.optimizer(each.parameters(), lr=3e-4, fused=fused) for each in models]
    inputs, targets = batch
    if way == "stack":
        stack = Stack(models, network.loss, optimizers)
        return TimedStep(lambda: stack(inputs, targets).sum(), stack.wait)

    def take_step() -> Tensor:
        losses = []
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = network.loss(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    return TimedStep(take_step)

"""Run all trainings of a case in one way, and measure time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from cputrain.bench.many import stacked_trainings, trainings
from cputrain.memory.tree import TreeMemorySampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCRIPT = trainings.__file__
STACKABLE_SCRIPT = stacked_trainings.__file__


class MemoryLog:
    """Thread that samples the memory of all processes below this one."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        sampler = TreeMemorySampler()
        while not self._is_stopped.wait(0.5):
            for sample in sampler.sample([os.getpid()]).values():
                self.samples.append(sample.current_bytes)

    def stop(self) -> list[int]:
        """Stop, and return the samples in bytes."""
        self._is_stopped.set()
        self._thread.join()
        return self.samples or [0]


def run_way(way: str, network: str, num_jobs: int, steps: int) -> dict[str, Any]:
    """Run the trainings with seeds from 0 on; return seconds, losses and memory."""
    memory = MemoryLog()
    started_at = time.perf_counter()
    losses = WAYS[way](network, num_jobs, steps)
    seconds = time.perf_counter() - started_at
    samples = memory.stop()
    return {
        "seconds": seconds,
        "losses": losses,
        "peak_bytes": max(samples),
        "median_bytes": int(median(samples)),
    }


def _command(network: str, seed: int, steps: int) -> list[str]:
    words = ["--network", network, "--seed", str(seed), "--steps", str(steps)]
    return [sys.executable, SCRIPT, *words]


def _loss(output: str) -> float:
    return float(json.loads(output.splitlines()[-1])["loss"])


def _in_turn(network: str, num_jobs: int, steps: int) -> list[float]:
    return [
        _loss(subprocess.run(
            _command(network, seed, steps), stdout=subprocess.PIPE, text=True, check=True
        ).stdout)
        for seed in range(num_jobs)
    ]  # fmt: skip


def _at_once(network: str, num_jobs: int, steps: int) -> list[float]:
    processes = [
        subprocess.Popen(_command(network, seed, steps), stdout=subprocess.PIPE, text=True)
        for seed in range(num_jobs)
    ]
    return [_loss(process.communicate()[0]) for process in processes]


def _joblib(network: str, num_jobs: int, steps: int) -> list[float]:
    from joblib import Parallel, delayed

    calls = (delayed(trainings.train)(network, seed, steps) for seed in range(num_jobs))
    return list(Parallel(n_jobs=-1)(calls))


def _ray(network: str, num_jobs: int, steps: int) -> list[float]:
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        task = ray.remote(num_cpus=1)(trainings.train)
        return list(ray.get([task.remote(network, seed, steps) for seed in range(num_jobs)]))
    finally:
        ray.shutdown()


def _many(
    network: str, num_jobs: int, steps: int, *, script: str = SCRIPT, options: Sequence[str] = ()
) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        grid = f"seed=0..{num_jobs - 1}"
        words = ["--network", network, "--steps", str(steps)]
        subprocess.run(
            [sys.executable, "-P", "-m", "cputrain.launch", "many", *options, "--folder=results",
             "--grid", grid, script, *words],
            cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with open(f"{folder}/results/results.jsonl", encoding="utf-8") as file:
            return [json.loads(line)["result"]["loss"] for line in file]


def _executor(network: str, num_jobs: int, steps: int) -> list[float]:
    from cputrain import Many

    with Many() as many:
        futures = [many.submit(trainings.train, network, seed, steps) for seed in range(num_jobs)]
        return [future.result() for future in futures]


WAYS: dict[str, Callable[[str, int, int], list[float]]] = {
    "in turn": _in_turn,
    "at once": _at_once,
    "joblib": _joblib,
    "ray": _ray,
    "many": _many,
    "recorded": partial(_many, options=("--record-step=auto",)),
    "stacked": partial(_many, script=STACKABLE_SCRIPT),
    "Many": _executor,
}

"""Many: functions in processes, their futures, and what ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cputrain import Many
from cputrain.errors import ArgumentTypeError, UsageError, WorkerDied
from tests.launch.programs import PYTHON, environment, script


def train(lr: float, steps: int = 3) -> tuple[float, int, int]:
    """Train a little; return the loss, the number of threads and that of CPUs."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item(), torch.get_num_threads(), len(os.sched_getaffinity(0))


def fail(text: str) -> None:
    raise ValueError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def test_calls_have_results_and_cores_of_their_own() -> None:
    expected = [train(lr)[0] for lr in (0.1, 0.2, 0.3)]
    with Many(cores=1) as many:
        futures = [many.submit(train, lr, steps=3) for lr in (0.1, 0.2, 0.3)]
        results = [future.result() for future in futures]
    assert [loss for loss, _, _ in results] == expected
    assert {threads for _, threads, _ in results} == {1}
    cpus_of_core = max(1, len(os.sched_getaffinity(0)) // many.num_cores)
    assert {cpus for _, _, cpus in results} <= set(range(1, cpus_of_core + 1))


def test_threads_are_those_of_the_cores() -> None:
    with Many(cores=2, at_once=1) as many:
        _, threads, cpus = many.submit(train, 0.1).result()
    assert threads == 2
    assert cpus >= 2


def test_map_keeps_the_order() -> None:
    with Many() as many:
        assert list(many.map(abs, range(-20, 0))) == list(range(20, 0, -1))
        assert torch.equal(many.submit(double, torch.arange(5)).result(), 2 * torch.arange(5))


def test_errors_are_those_of_the_function() -> None:
    with Many(at_once=1) as many:
        with pytest.raises(ValueError, match="no such lr"):
            many.submit(fail, "no such lr").result()
        with pytest.raises(WorkerDied):
            many.submit(die).result()
        with pytest.raises(Exception, match="pickle"):
            many.submit(lambda: 1).result()
        assert many.submit(abs, -1).result() == 1


def test_futures_are_cancelled_and_call_back() -> None:
    seen = []
    with Many(at_once=1) as many:
        first = many.submit(time.sleep, 0.2)
        second = many.submit(time.sleep, 100)
        third = many.submit(abs, -3)
        third.add_done_callback(lambda future: seen.append(future.result()))
        assert second.cancel()
        assert first.result() is None
    assert seen == [3]
    assert second.cancelled()


def test_shutdown_cancels_what_waits() -> None:
    many = Many(at_once=1)
    running = many.submit(time.sleep, 0.1)
    waiting = [many.submit(time.sleep, 100) for _ in range(3)]
    many.shutdown(cancel_futures=True)
    assert running.done()
    assert all(future.cancelled() for future in waiting)
    with pytest.raises(RuntimeError, match="after shutdown"):
        many.submit(abs, -1)


def test_a_call_may_submit_the_next_one() -> None:
    with Many(at_once=1) as many:
        futures = [many.submit(abs, -1)]

        def go_on(future: object) -> None:
            if len(futures) < 5:
                futures.append(many.submit(abs, -len(futures) - 1))
                futures[-1].add_done_callback(go_on)

        futures[0].add_done_callback(go_on)
        while len(futures) < 5:
            time.sleep(0.01)
    assert [future.result() for future in futures] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"cores": 0}, UsageError),
        ({"cores": 10**6}, UsageError),
        ({"cores": "all"}, ArgumentTypeError),
        ({"cores": True}, ArgumentTypeError),
        ({"at_once": 0}, UsageError),
        ({"at_once": 1.5}, ArgumentTypeError),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        Many(**arguments)  # type: ignore[arg-type]


def test_ctrl_c_kills_the_calls(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
import time
from cputrain import Many
if __name__ == "__main__":
    with Many(at_once=2) as many:
        futures = [many.submit(time.sleep, 1000) for _ in range(4)]
        print("ready", flush=True)
        futures[0].result()
""",
    )
    process = subprocess.Popen(
        [PYTHON, "x.py"], cwd=tmp_path, env=environment(tmp_path), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in stderr


JOBLIB = """
from cputrain import Many
from joblib import Parallel, delayed

def train(lr):
    return lr * 2

if __name__ == "__main__":
    factor = 3
    with Many() as many, many.joblib_backend():
        print(Parallel()(delayed(train)(lr) for lr in range(5)))
        print(Parallel(n_jobs=2)(delayed(lambda lr: factor * lr)(lr) for lr in range(5)))
        try:
            Parallel()(delayed(lambda: 1 / 0)() for _ in range(2))
        except ZeroDivisionError as error:
            print("raised", error)
"""


def test_joblib_runs_its_calls_here(tmp_path: Path) -> None:
    script(tmp_path, JOBLIB)
    done = subprocess.run(
        [sys.executable, "x.py"], cwd=tmp_path, env=environment(tmp_path), text=True,
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[0, 2, 4, 6, 8]", "[0, 3, 6, 9, 12]", "raised division by zero"
    ]  # fmt: skip

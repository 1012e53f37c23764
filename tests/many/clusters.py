"""Many on Ray and Dask: run by `make test-clusters`, in an environment that has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cputrain import Many
from cputrain.errors import ArgumentTypeError, UsageError


def train(lr: float) -> tuple[float, int]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item(), torch.get_num_threads()


def process_of(_: int) -> int:
    return os.getpid()


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.fixture(scope="module", params=["ray", "dask"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield "ray"
        ray.shutdown()
    else:
        from distributed import Client, LocalCluster

        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local,
            Client(local) as client,
        ):
            yield client


def test_calls_run_there_with_a_thread_for_each_core(cluster: Any) -> None:
    expected = {lr: train(lr)[0] for lr in (0.1, 0.2, 0.3)}
    with Many(cluster=cluster, cores=1) as many:
        assert many.num_cores == 2
        futures = {lr: many.submit(train, lr) for lr in expected}
        results = {lr: future.result(timeout=120) for lr, future in futures.items()}
        processes = set(many.map(process_of, range(8)))
    assert {lr: loss for lr, (loss, _) in results.items()} == pytest.approx(expected)
    assert {threads for _, threads in results.values()} == {1}
    assert os.getpid() not in processes


def test_errors_are_those_of_the_function(cluster: Any) -> None:
    with Many(cluster=cluster) as many:
        with pytest.raises(ValueError, match="no such lr"):
            many.submit(fail, "no such lr").result(timeout=120)
        assert many.submit(abs, -1).result(timeout=120) == 1


def test_joblib_runs_there(cluster: Any) -> None:
    import joblib

    with Many(cluster=cluster) as many, many.joblib_backend():
        assert joblib.Parallel()(joblib.delayed(abs)(-x) for x in range(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong", ["slurm", 3])
def test_other_clusters_are_refused(wrong: Any) -> None:
    with pytest.raises((UsageError, ArgumentTypeError), match="cluster"):
        Many(cluster=wrong)

"""`cputrain bench steps`: whole steps of small networks, eager and compiled."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.bench.steps import CASES, as_markdown
from cputrain.bench.steps.cases import ways_of
from cputrain.bench.steps.comparison import StepComparison, StepResult, summarise
from cputrain.bench.steps.networks import NETWORKS
from cputrain.errors import NotFound
from cputrain.launch.commands.bench import main


@pytest.mark.parametrize("names", [("ppo", "gnn"), pytest.param((), marks=pytest.mark.long)])
def test_each_network_is_timed_in_each_way(names: tuple[str, ...]) -> None:
    words = ("bench", "steps", "--quick", "--json", *names)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    assert (comparison["schema_version"], comparison["threads"]) == (1, [1])
    assert list(CASES) == list(NETWORKS)
    assert [case["name"] for case in comparison["cases"]] == list(names or CASES)
    for case in comparison["cases"]:
        assert [times["way"] for times in case["times"]] == ways_of(case["name"], quick=True)
        assert all(times["seconds"] > 0 for times in case["times"])
        assert all(times["loss_difference"] < 1e-5 for times in case["times"])


def test_what_the_figures_amount_to() -> None:
    document = {
        "seconds": {"eager": [0.4, 0.2, 0.3], "step": [0.1, 0.1, 0.1]},
        "compile_seconds": {"eager": 0.5, "step": 4.0},
        "loss_differences": {"eager": 0.0, "step": 2e-7},
    }
    eager, step = summarise(document, 2)
    assert (step.speedup.median, step.speedup.lowest) == (pytest.approx(3.0), 2.0)
    assert (eager.seconds, step.seconds) == (0.3, 0.1)
    result = StepResult(name="ppo", title="PPO", times=(eager, step))
    comparison = StepComparison(threads=(2,), rounds=3, versions={"python": "3"}, cases=(result,))
    text = as_markdown(comparison, machine_line="a machine")
    assert "| Step | 2 | 100 ms | 3.00 (2.00 to 4.00) | 4.00 s | 2e-07 |" in text


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(NotFound, match="the network dqn must be one of ppo"):
        main(["steps", "dqn"])

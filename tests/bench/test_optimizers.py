"""`cputrain bench optimizers`: steps, fused and as torch takes them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.bench.optimizers import CASES, as_markdown, case_note
from cputrain.bench.optimizers.cases import MAX_ELEMENTS, OPTIMIZERS, shapes
from cputrain.bench.optimizers.comparison import (
    OptimizerComparison,
    OptimizerResult,
    summarise,
)
from cputrain.errors import NotFound, UsageError
from cputrain.launch.commands.bench import main


def test_each_optimizer_is_timed_both_ways():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "bench", "optimizers",
         "--quick", "--threads=1", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    assert (comparison["schema_version"], comparison["threads"]) == (1, [1])
    assert [case["name"] for case in comparison["cases"]] == list(CASES) == list(OPTIMIZERS)
    for case in comparison["cases"]:
        assert len(case["cells"]) == len(shapes(quick=True))
        assert all(cell["python_s"] > 0 and cell["rounds"] >= 2 for cell in case["cells"])
        # 30 tensors are fused, but for plain SGD, which is one operator already
        assert case["cells"][1]["is_fused"] == (case["name"] != "sgd")
        assert not case["cells"][0]["is_fused"]


def test_the_sweep_goes_to_the_ends():
    cells = shapes(quick=False)
    assert {(1, 1, 1.0), (1000, 1, 1.0), (1, 10_000_000, 1.0)} <= set(cells)
    assert {0.001, 1.0} <= {touched for _, _, touched in cells}
    assert max(count * size for count, size, _ in cells) <= MAX_ELEMENTS


def test_what_the_figures_amount_to():
    cell = {
        "num_tensors": 12, "num_elements": 1000, "touched": 1.0, "is_fused": True,
        "seconds": {"python": [0.4, 0.2, 0.3], "cputrain": [0.1, 0.1, 0.1]},
    }  # fmt: skip
    fast = summarise(cell, 1)
    assert (fast.speedup.median, fast.speedup.lowest) == (pytest.approx(3.0), 2.0)
    assert (fast.python_s, fast.cputrain_s, fast.rounds) == (0.3, 0.1, 3)
    slow = summarise({**cell, "seconds": {"python": [0.1], "cputrain": [0.2]}}, 2)
    result = OptimizerResult(name="adam", title="Adam", cells=(fast, slow))
    comparison = OptimizerComparison(threads=(1, 2), versions={"python": "3"}, cases=(result,))
    text = as_markdown(comparison, machine_line="a machine")
    assert "| 12 × 1,000 | 300 ms | 3.00* | 100 ms | 0.50* |" in text
    assert "Smallest speed-up: 0.50 (12 × 1,000, 2 threads)" in text
    assert case_note(result) == ("Below 0.98 of python's speed: 12 × 1,000 with 2 threads (0.50).")
    assert case_note(result.replace(cells=(fast,))) == ""


def test_what_is_not_there_is_told():
    with pytest.raises(NotFound, match="the optimizer lion"):
        main(["optimizers", "lion"])
    with pytest.raises(UsageError, match="--threads must be a whole number"):
        main(["optimizers", "--threads", "many"])

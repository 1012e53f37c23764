"""`cputrain bench many`: every way for real, with next to nothing to train."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.bench.many import as_markdown, case_table, compare_many, footnote, stacked_trainings
from cputrain.bench.many.cases import CASES, OURS, STEPS, WAYS
from cputrain.bench.many.comparison import summarise
from cputrain.bench.many.trainings import NETWORKS, train
from cputrain.errors import NotFound
from cputrain.launch.commands.bench import main
from tests.compilers import hide_compiler


def runs(**seconds: float) -> dict[str, list[dict[str, object]]]:
    return {
        way.replace("_", " "): [
            {"seconds": time_s + number, "losses": [1.0, 2.0 + 1e-6 * number],
             "peak_bytes": 5 + number, "median_bytes": 3 + number}
            for number in range(3)
        ]
        for way, time_s in seconds.items()
    }  # fmt: skip


def test_speed_ups_are_those_of_our_ways() -> None:
    case = summarise("mlp", 10, runs(in_turn=10.0, joblib=8.0, many=4.0), {"ray": "not there"})
    in_turn, joblib, many = case.sides
    assert in_turn.speedups == joblib.speedups == {}
    assert many.speedups["joblib"].median == pytest.approx(9 / 5)
    assert (many.peak_bytes, many.median_bytes) == (7, 4)
    assert case.loss_difference == pytest.approx(1e-6, rel=0.1)
    head, rows = case_table(case)
    assert len(head) == len(rows[0]) == 6
    assert rows[1][3] == "1.80× as fast"


@pytest.mark.long
def test_every_way_trains_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare_many(["mlp"], num_jobs=2, rounds=1, quick=True)
    (case,) = comparison.cases
    names = {side.name for side in case.sides}
    assert set(OURS) | {"in turn", "at once", "joblib"} <= names
    assert case.loss_difference < 1e-4
    assert all(side.peak_bytes > 50 << 20 for side in case.sides)
    assert "round 1 of 1, many: " in capsys.readouterr().err
    page = as_markdown(comparison, machine_line="a machine")
    assert page.startswith("a machine")
    assert footnote(comparison) in page


@pytest.mark.parametrize("network", [name for name in CASES if name != "data"])
def test_a_seed_gives_the_same_loss(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_compiler(monkeypatch)  # nothing compiles while other tests run
    losses = [train(network, seed, 3) for seed in (0, 1)]
    assert losses[0] == train(network, 0, 3) != losses[1]
    if network == "ppo":
        together = stacked_trainings.train_policies([0, 1], 3)
    else:
        together = stacked_trainings.train(network, [0, 1], 3)
    assert together == pytest.approx(losses, rel=1e-4)


def test_cases_have_titles_and_steps() -> None:
    assert CASES.keys() == STEPS.keys() == {"ppo", *NETWORKS}
    assert set(OURS) <= WAYS.keys()


def test_mistakes_are_told() -> None:
    with pytest.raises(NotFound, match="the case none"):
        compare_many(["none"])
    with pytest.raises(NotFound, match="the way none"):
        compare_many(["mlp"], ways=["none"])


def test_the_comparison_loads_no_torch() -> None:
    code = "import sys, cputrain.bench.many; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_command_has_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cputrain.bench.many import comparison

    monkeypatch.setattr(
        comparison, "compare_case",
        lambda name, _, steps, *__: summarise(name, steps, runs(in_turn=2.0, many=1.0), {}),
    )  # fmt: skip
    assert main(["many", "ppo", "--trainings", "2", "--rounds", "1", "--quick", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_jobs"] == 2
    assert document["cases"][0]["steps"] == 5

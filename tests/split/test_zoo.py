"""Models that mix samples or keep state train as in plain python, or are left undivided."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from cputrain import Split
from tests.launch.programs import launch, plain
from tests.selected import selected, some
from tests.split import zoo

HERE = Path(__file__).parent

OURS = "cputrain.Split: "

LAUNCHED = (
    "MoCoInPlace", "DINO", "PPO", "TrainsAndEvaluates", "RDrop", "FlagOfTheClass",
    "VariationalAutoencoder", "GanWithTwoOptimizers", "FrozenLayerThaws",
)  # fmt: skip


def run(name, wrap):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result, call = zoo.train(name, wrap)
    texts = [str(one.message) for one in told]
    return result, call, [text for text in texts if not text.startswith(OURS)]


@pytest.mark.parametrize("name", some(zoo.PATTERNS, len(zoo.PATTERNS) // 9))
@pytest.mark.usefixtures("exactly")
def test_a_model_of_the_zoo_trains_as_it_does_without_split(name):
    given = zoo.PATTERNS[name]
    right, _, before = run(name, lambda model: model)
    divided, split, after = run(name, lambda model: Split(model, replicas=2))
    assert zoo.differences(right, divided, given.rtol) == []
    assert [text for text in after if text not in before] == []  # torch tells some only once
    if given.expected == "divided":
        assert split.calls_divided, split.why_not
    else:
        assert split.calls_divided or split.why_not
    if given.expected not in ("divided", "either"):
        assert given.expected in split.why_not


@pytest.fixture(scope="module")
def printed(request, tmp_path_factory):
    """Losses of every script, under plain python and divided by a launch."""
    folder = tmp_path_factory.mktemp("zoo")
    words = (str(HERE / "zoo.py"), *selected(request, LAUNCHED, __file__))
    runs = plain(folder, *words), launch(folder, "--replicas", "2", *words)
    assert [run.returncode for run in runs] == [0, 0], runs
    return [
        {line.split()[0]: list(map(float, line.split()[1:])) for line in run.stdout.splitlines()}
        for run in runs
    ]


@pytest.mark.parametrize("name", some(LAUNCHED, 1))
@pytest.mark.long
def test_a_launched_script_prints_the_losses_of_plain_python(name, printed):
    undivided, divided = (losses[name] for losses in printed)
    assert len(undivided) >= zoo.STEPS
    assert divided == pytest.approx(undivided, rel=1e-6, abs=1e-9)

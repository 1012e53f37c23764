"""`cputrain bench pools`: every pool for real, with next to nothing to do."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

from cputrain.bench.pools import CASES, case_note, case_table, compare_pools, comparison, tasks
from cputrain.bench.pools.cases import PoolCase, cases, find_case
from cputrain.bench.pools.comparison import compare_case, summarise
from cputrain.bench.pools.contenders import CONTENDERS, PoolContender, PoolMethods
from cputrain.bench.pools.runs import _check, cpu_seconds
from cputrain.errors import CputrainError, UsageError
from cputrain.launch.commands.bench import main
from cputrain.measure import child
from tests import selected

OURS = CONTENDERS[0]


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def only(monkeypatch, *contenders):
    monkeypatch.setattr(comparison, "CONTENDERS", contenders)


ALL = [case.name for group in CASES for case in cases(group, quick=True)]


@pytest.mark.parametrize("name", selected.cases(ALL, ALL[::12]))
@pytest.mark.long
def test_every_pool_gives_right_results_in_each_case(name):
    """A run that finds a wrong result ends with an error, so one that is told of was right.

    joblib and mpire take part where they are installed; no other is left out.
    """
    case = find_case(name, quick=True)
    found = compare_case(case, 1, 2, quick=True)
    assert found.results == case.num_tasks
    assert {"cputrain", "torch", "futures"} <= {one.name for one in found.sides}
    asked = {one.name for one in CONTENDERS if one.can_run(case)}
    assert {one.name for one in found.sides} | set(found.left_out) == asked
    assert all(
        reason == f"it is not installed: pip install {other.split()[0]}"
        for other, reason in found.left_out.items()
    )
    assert found.side("cputrain").best_other in asked - {"cputrain", "no pool"}
    assert (found.side("cputrain").cpu_seconds is None) == name.startswith("start")


def test_the_document_holds_every_figure(monkeypatch, capsys):
    only(monkeypatch, *CONTENDERS[:2])
    assert (
        main(["--repeats", "1", "pools", "--quick", "--json", "--processes=2", "--cases", "big"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["schema_version", "rounds", "processes", "quick", "versions", "cases"]
    assert (found["schema_version"], found["rounds"], found["processes"]) == (1, 1, 2)
    assert found["quick"] is True
    assert {"python", "torch", "cputrain"} <= set(found["versions"])
    assert [case["name"] for case in found["cases"]] == ["big-partial", "big-argument"]
    for case in found["cases"]:
        assert list(case) == ["name", "title", "results", "sides", "left_out"]
        assert case["results"] == 12
        assert [one["name"] for one in case["sides"]] == ["cputrain", "torch"]
        for one in case["sides"]:
            assert list(one) == [
                "name", "seconds", "median", "fastest", "slowest", "quartiles", "best_other",
                "speedup", "cpu_seconds",
            ]  # fmt: skip
            assert len(one["seconds"]) == 1
            assert set(one["speedup"]) == {"median", "lowest", "highest"}


def test_tables_say_what_was_run_and_that_little_work_says_nothing_of_speed(monkeypatch, capsys):
    """Data goes to stdout, what happens meanwhile to stderr."""
    only(monkeypatch, *CONTENDERS[:2])
    assert main(["pools", "--rounds", "1", "--quick", "--markdown", "--cases=start"]) == 0
    said = capsys.readouterr()
    assert "### Start: from the constructor to the first result" in said.out
    assert "| torch |" in said.out
    assert "the cases are too small to say anything about speed" in said.out
    assert "start-fresh: round 1 of 1, cputrain" in said.err
    assert "round 1 of 1" not in said.out
    assert "tiny" not in said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pools", "--cases", "tensor"), "tensors, big, fill, tiny, arrays, huge, start"),
        (("pools", "tensor"), "tensors, big, fill, tiny, arrays, huge, start"),
        (("pools", "--rounds", "0"), "--rounds must be a whole number from 1"),
        (("pools", "--processes", "two"), "--processes must be a whole number from 1"),
        (("--repeats", "0", "pools"), "--repeats must be a whole number from 1"),
        (("pools", "--quik"), "Did you mean --quick?"),
        (("--launch-args", "-q", "pools"), "no effect on pools"),
    ],
)
def test_bad_input_is_one_clear_message(arguments, words):
    """The message names the parameter and the rule; nothing is run."""
    done = bench(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_names_every_group_of_cases():
    done = bench("pools", "--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in CASES)


def test_a_library_that_is_not_installed_is_left_out_with_the_way_to_install_it(monkeypatch):
    absent_one = OURS.replace(name="other", module="no_such_pool", distribution="no-such-pool")
    only(monkeypatch, OURS, absent_one)
    found = compare_case(find_case("start-fresh", quick=True), 1, 2, quick=True)
    assert [one.name for one in found.sides] == ["cputrain"]
    assert case_note(found) == ("Left out: other (it is not installed: pip install no-such-pool).")


def test_a_pool_that_fails_is_left_out_with_what_it_said_last(monkeypatch, capfd):
    only(monkeypatch, OURS, CONTENDERS[1].replace(name="nobody"))  # the process knows none so named
    found = compare_case(find_case("start-fresh", quick=True), 2, 2, quick=True)
    assert found.left_out == {"nobody": "round 1: exit code 1: StopIteration"}
    assert len(found.side("cputrain").seconds) == 2
    assert "start-fresh: nobody: exit code 1" in capfd.readouterr().err


def test_if_ours_fails_there_is_nothing_to_compare(monkeypatch):
    only(monkeypatch, OURS)
    case = find_case("start-fresh", quick=True).replace(name="no-such-case")
    with pytest.raises(CputrainError, match="cputrain's pool in no-such-case must run the case"):
        compare_case(case, 1, 2, quick=True)


def test_a_pool_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(child, "TIMEOUT_S", 0.01)
    only(monkeypatch, OURS)
    with pytest.raises(CputrainError, match=r"no exit within 0\.01 s"):
        compare_case(find_case("start-fresh", quick=True), 1, 2, quick=True)


def anything(*_):
    raise AssertionError


SOME = PoolContender(name="some", module="math", open_pool=lambda *_: anything())


@pytest.mark.parametrize(
    ("case", "results"),
    [
        ("tiny-map", [1, 2]),
        ("tiny-map", []),
        ("tensors-kept", [torch.zeros(1 << 12), torch.zeros(1 << 12)]),
        ("tensors-one-by-one", [(0.0, 0.0), (1.0, 0.0)]),
        ("fill-rows", torch.zeros(2, 64, dtype=torch.uint8)),
    ],
)
def test_a_pool_with_other_results_is_not_compared(case, results):
    """A faster pool that returns something else is no faster pool."""
    one = find_case(case, quick=True)
    with pytest.raises(CputrainError, match=rf"results of 'some' in {case} must be the function's"):
        _check(one, SOME, results, None, range(2))


def test_a_ratio_is_taken_within_its_round_against_the_best_of_the_others():
    """A machine that slows down between rounds changes no ratio."""
    seconds = {"cputrain": (1.0, 10.0), "torch": (2.0, 20.0), "mpire": (4.0, 40.0),
               "no pool": (0.5, 0.5)}  # fmt: skip
    runs = {
        name: [{"seconds": one, "cpu_seconds": None, "results": 3} for one in both]
        for name, both in seconds.items()
    }
    case = summarise("tiny-map", "tiny", runs, {})
    assert case.results == 3
    assert case.side("cputrain").best_other == "torch"
    assert case.side("cputrain").speedup.as_json() == {"median": 2, "lowest": 2, "highest": 2}
    assert case.side("mpire").best_other == "cputrain"
    assert case.side("mpire").speedup.median == 0.25
    assert case.side("no pool").best_other is None
    head, rows = case_table(case)
    assert head == ("", "median", "fastest to slowest (middle half)", "against the best other")
    assert [row[0] for row in rows] == ["cputrain", "torch", "mpire", "no pool"]


def test_names_of_cases_are_unique_with_and_without_quick():
    named = [case.name for group in CASES for case in cases(group)]
    assert named == ALL
    assert len(set(named)) == len(named)
    assert all(isinstance(case, PoolCase) for group in CASES for case in cases(group))


def test_a_group_that_is_not_known_is_named():
    with pytest.raises(
        UsageError, match="must be out of tensors, big, fill, tiny, arrays, huge, start"
    ):
        compare_pools(["tensor"])


def test_pools_are_asked_in_five_ways():
    """The way without a pool shows what each of them means."""
    no_pool = next(one for one in CONTENDERS if one.name == "no pool")
    with no_pool.open_pool(2, None) as methods:
        assert isinstance(methods, PoolMethods)
        assert list(methods.imap(math.isqrt, [4, 9], None)) == [2, 3]
        assert methods.map_all(math.isqrt, [4, 9], 1) == [2, 3]
        assert methods.map_partial(pow, 2, [3, 4]) == [8, 16]
        assert methods.starmap_large(pow, 2, [3, 4]) == [8, 16]
        out = torch.zeros(3, tasks.WIDTH, dtype=torch.uint8)
        methods.fill_tensor(tasks.write_rows, out)
        assert torch.equal(out, tasks.filled_rows(tasks.write_rows, range(3)))


def test_processor_time_grows():
    before = cpu_seconds()
    sum(range(1_000_000))
    assert cpu_seconds() > before


def test_processor_time_of_a_worker_that_has_ended_counts():
    """`fill` ends its workers before its time is read."""
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    assert cpu_seconds() > before + 0.1


def test_the_comparison_of_pools_loads_no_torch():
    code = "import sys, cputrain.bench.pools; print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"

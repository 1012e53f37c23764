"""Grids, templates and job files: which jobs a command line makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputrain.errors import UsageError
from cputrain.many.grid import arguments_for, combinations, filled, read_axis
from cputrain.many.job import Job
from cputrain.many.job_files import (
    JobDefaults,
    jobs_from_rows,
    read_csv,
    read_toml,
)
from cputrain.target import Target, TargetKind

TRAIN = Target(kind=TargetKind.SCRIPT, name="train.py", arguments=("--epochs", "3"))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("lr=1e-3,1e-2", "lr", ("1e-3", "1e-2")),
        ("--lr=1e-3", "lr", ("1e-3",)),
        ("seed=0..3", "seed", ("0", "1", "2", "3")),
        ("seed=-1..1", "seed", ("-1", "0", "1")),
        ("width=64..256..64", "width", ("64", "128", "192", "256")),
        ("width=64..250..64,7", "width", ("64", "128", "192", "7")),
        ("name=a b,c=d", "name", ("a b", "c=d")),
        ("flag=", None, ()),
        ("=1", None, ()),
        ("seed", None, ()),
        ("seed=3..1", None, ()),
        ("seed=0..9999999", None, ()),
        ("seed=0..4..0", None, ()),
    ],
)
def test_an_axis_has_a_name_and_values(
    text: str, name: str | None, values: tuple[str, ...]
) -> None:
    if name is None:
        with pytest.raises(UsageError, match="--grid"):
            read_axis(text, "--grid")
    else:
        assert read_axis(text, "--grid") == (name, values)


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.text(), min_size=1, max_size=3)))
def test_every_combination_is_made_once(axes: dict[str, list[str]]) -> None:
    made = list(combinations(axes, "--grid"))
    count = 1
    for values in axes.values():
        count *= len(values)
    assert len(made) == count
    assert all(set(values) == set(axes) for values in made)


def test_too_many_combinations_are_refused() -> None:
    axes = {name: tuple(map(str, range(1000))) for name in "abc"}
    with pytest.raises(UsageError, match=r"1,000,000,000"):
        list(combinations(axes, "--grid"))


@pytest.mark.parametrize(
    ("arguments", "template", "expected"),
    [
        ((), (), ("--lr", "1e-3", "--seed=-1")),
        (("--epochs", "3"), (), ("--epochs", "3", "--lr", "1e-3", "--seed=-1")),
        (("{seed}",), (), ("-1", "--lr", "1e-3")),
        ((), ("--learning-rate={lr}",), ("--learning-rate=1e-3", "--seed=-1")),
        (("run-{lr}-{seed}",), (), ("run-1e-3--1",)),
        (('{"a": {}}', "{x}"), (), ('{"a": {}}', "{x}", "--lr", "1e-3", "--seed=-1")),
    ],
)
def test_parameters_become_arguments_unless_they_stand_there(
    arguments: tuple[str, ...], template: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    words, variables = arguments_for(arguments, template, {}, {"lr": "1e-3", "seed": "-1"})
    assert words == expected
    assert variables == {}


def test_parameters_stand_in_variables() -> None:
    words, variables = arguments_for((), (), {"SEED": "{seed}", "X": "1"}, {"seed": "4"})
    assert words == ()
    assert variables == {"SEED": "4", "X": "1"}


def test_a_misspelt_placeholder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\{sed\}.*The parameters are lr, seed"):
        filled("{lr}-{sed}", {"lr": "1", "seed": "2"}, "--template")


def test_rows_and_grids_are_combined() -> None:
    defaults = JobDefaults(target=TRAIN, axes={"seed": ("0", "1")})
    jobs = list(jobs_from_rows(defaults, [{"lr": "1"}, {"lr": "2"}], "--grid"))
    assert [job.name for job in jobs] == [
        "lr=1,seed=0", "lr=1,seed=1", "lr=2,seed=0", "lr=2,seed=1"
    ]  # fmt: skip
    assert jobs[0].target.arguments == ("--epochs", "3", "--lr", "1", "--seed", "0")
    assert len({job.file_name for job in jobs}) == 4


def test_file_names_are_different_and_can_be_written(tmp_path: Path) -> None:
    names = ["a/b", "a:b", "../../x", "", "é" * 300, "." * 9, "con\n"]
    jobs = [
        Job(target=TRAIN.replace(arguments=(name,)), parameters={"name": name}) for name in names
    ]
    assert len({job.file_name for job in jobs}) == len(names)
    for job in jobs:
        (tmp_path / job.file_name).write_text("x")
    assert len(list(tmp_path.iterdir())) == len(names)


def test_a_table_has_a_job_in_each_row(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text('\ufefflr, seed\n1e-3,0\n\n"1,5",1\n')
    assert read_csv(str(path)) == [{"lr": "1e-3", "seed": "0"}, {"lr": "1,5", "seed": "1"}]


@pytest.mark.parametrize("text", ["", "lr\n", "lr,lr\n1,2\n", "lr,seed\n1\n", "a,\n1,2\n"])
def test_a_broken_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"jobs\.csv"):
        read_csv(str(path))


TOML = """
script = "train.py"
arguments = ["--epochs", "3"]
retries = 1
timeout = "2h"
variables = {SEED = "{seed}"}
grid = {lr = [1e-3, 1e-2], seed = "0..1"}

[[job]]

[[job]]
name = "large"
arguments = ["--width", "512"]
parameters = {kind = "large"}
grid = {seed = [7]}
cores = 2
memory = "2GiB"
"""


def test_a_toml_file_has_defaults_and_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(TOML)
    jobs = read_toml(str(path), JobDefaults(retries=5))
    assert [job.name for job in jobs] == [
        "lr=0.001,seed=0", "lr=0.001,seed=1", "lr=0.01,seed=0", "lr=0.01,seed=1", "large", "large"
    ]  # fmt: skip
    assert jobs[0].target.arguments == ("--epochs", "3", "--lr", "0.001")
    assert jobs[0].variables == {"SEED": "0"}
    assert jobs[0].retries == 1
    assert jobs[0].timeout_s == 7200
    assert jobs[-1].target.arguments == (
        "--epochs", "3", "--width", "512", "--kind", "large", "--lr", "0.01"
    )  # fmt: skip
    assert jobs[-1].cores == 2
    assert jobs[-1].memory_bytes == 2 << 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("script = ", "must be a readable file of jobs"),
        ('scrpt = "x.py"', "is not a key of a job.*script"),
        ('script = "x.py"\nmodule = "x"', "cannot be given with script"),
        ("script = 3", "must be a text"),
        ('script = "x.py"\narguments = "a b"', "must be a list"),
        ('script = "x.py"\nretries = -1', "must be a whole number from 0 on"),
        ('script = "x.py"\ncores = true', "must be a whole number from 1 on"),
        ('script = "x.py"\ngrid = 3', "must be a table"),
        ('script = "x.py"\nvariables = 3', "must be a table"),
        ('script = "x.py"\ntimeout = "soon"', "must be a duration"),
        ('script = "x.py"\nmemory = "much"', "must be a size"),
        ('script = "x.py"\njob = 3', "must be tables"),
        ("retries = 1", "the script is missing"),
    ],
)
def test_a_broken_toml_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_toml(str(path), JobDefaults())

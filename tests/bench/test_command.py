"""`cputrain bench` as a user types it."""

import importlib.metadata
import json
import os
import subprocess
import sys

import pytest

from cputrain.bench import workloads
from cputrain.launch.commands.bench import CASE_BENCHMARKS

SCRIPT = """
import json
print("text of its own")
print(json.dumps({"losses": [2.0, 1.0], "seconds_per_step": [0.01, 0.01], "samples_per_step": 4}))
"""


def bench(*arguments, cwd, **variables):
    return subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "bench", *arguments],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_run_both_ways_in_turns_and_its_losses_are_compared(script):
    """The JSON document holds every run, in the order in which they ran."""
    done = bench("--repeats", "2", "--json", "train.py", cwd=script.parent)
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)["comparisons"]
    assert [run["name"] for run in comparison["measurements"]] == [
        "python",
        "cputrain launch",
        "cputrain launch",
        "python",
    ]
    assert [side["loss_difference"] for side in comparison["sides"]] == [0.0, 0.0]


def test_the_table_ends_by_saying_how_much_faster_it_was(script):
    """A person reads the factor, and that the losses are equal."""
    done = bench("--repeats", "1", "train.py", cwd=script.parent)
    assert "cputrain launch ran train.py" in done.stdout
    assert "The losses: equal, 2 compared." in done.stdout
    assert "text of its own" not in done.stdout


def test_a_markdown_table_names_the_machine(script):
    """A table that is passed on says where it was made."""
    done = bench("--repeats", "1", "--markdown", "train.py", cwd=script.parent)
    assert "cores" in done.stdout
    assert done.stdout.count("|") > 20


def test_options_after_the_script_are_the_scripts(tmp_path):
    """Nothing of ours is read behind the script's name."""
    (tmp_path / "train.py").write_text("import sys\nassert sys.argv[1:] == ['--repeats', 'x']\n")
    done = bench("--repeats", "1", "train.py", "--repeats", "x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_workloads_are_listed_with_what_they_are(tmp_path):
    """Each has a line of its own."""
    done = bench("--list", cwd=tmp_path)
    named = [line.split()[0] for line in done.stdout.splitlines()]
    assert named == [*workloads(), *CASE_BENCHMARKS]
    assert {"gan", "gpt", "mlp", "resnet50"} <= set(named)


def test_other_launchers_run_beside(script):
    """Those that come with torch, each once."""
    done = bench("--repeats", "1", "--peers", "--json", "train.py", cwd=script.parent)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["comparisons"]
    names = [side["name"] for side in found["sides"]]
    assert names[:2] == ["python", "cputrain launch"]
    assert {"run_cpu", "torchrun"} <= set(names)


def test_every_combination_needs_a_search_to_measure(tmp_path):
    done = bench("--exhaustive", "mlp", cwd=tmp_path)
    assert (done.returncode, "--tune 60" in done.stderr) == (2, True)


def test_numbers_of_replicas_run_beside(tmp_path):
    (tmp_path / "train.py").write_text(TRAINS)
    done = bench("--repeats=1", "--replicas=2,auto", "--json", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["comparisons"]
    names = [side["name"] for side in found["sides"]]
    assert names == ["python", "cputrain launch", "2 replicas", "auto replicas"]


@pytest.mark.long
def test_what_tuning_finds_runs_beside(tmp_path):
    """It is found anew, compared, and not remembered."""
    (tmp_path / "train.py").write_text(TRAINS)
    done = bench(
        "--repeats=1", "--tune=30", "--json", "train.py", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["comparisons"]
    assert [side["name"] for side in found["sides"]] == ["python", "cputrain launch", "tuned"]
    assert not (tmp_path / "cputrain" / "tuned").exists()


TRAINS = """
import torch
weight = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(40):
    optimizer.zero_grad()
    (weight - 1).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--repeats", "0", "train.py"), 2, "whole number from 1"),
        (("--repeats", "many", "train.py"), 2, "'many'"),
        (("--repeats", "9" * 5000, "train.py"), 2, "whole number from 1"),
        (("--launch-args", "'", "train.py"), 2, "quoted as in a shell"),
        (("absent.py",), 127, "bench --list"),
        (("--repeat", "3", "train.py"), 2, "Did you mean --repeats?"),
    ],
)
def test_bad_input_is_one_clear_message(script, arguments, code, words):
    """The message names the parameter and what to do; there is never a traceback."""
    done = bench(*arguments, cwd=script.parent)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_fails_shows_the_end_of_what_it_said(tmp_path):
    """A failure of the script is not mistaken for a measurement."""
    (tmp_path / "train.py").write_text("raise SystemExit('no data here')\n")
    done = bench("--repeats", "1", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "no data here" in done.stderr


def test_other_backends_and_interpreters_are_sides_too(script):
    done = bench(
        "--repeats", "1", "--json", "--backends", "default", "--python", sys.executable, "train.py",
        cwd=script.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)["comparisons"]
    version = importlib.metadata.version("torch")
    assert [side["name"] for side in comparison["sides"]] == [
        "python", "cputrain launch", "default", f"python, torch {version}",
        f"cputrain launch, torch {version}",
    ]  # fmt: skip


def test_an_interpreter_that_is_none_is_told(script):
    done = bench("--python", "nowhere/python", "train.py", cwd=script.parent)
    assert done.returncode == 2
    assert "--python must be the interpreter of an environment with torch" in done.stderr

"""Ctrl-C in `bench` and `tune`, as a terminal sends it: to all processes of the group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.programs import environment, script
from tests.tune.test_trials import LOOP, TRAINS

BETWEEN_ROUNDS = "round 2 of 9, "
AFTER_THE_RULES = "alone    "


def interrupted(folder: Path, *words: str, after: str) -> tuple[int, str, list[str]]:
    """The exit code and the two outputs of a command, interrupted after a line with a text."""
    with subprocess.Popen(
        [sys.executable, "-m", "cputrain.launch", *words],
        cwd=folder, env=environment(folder), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        assert command.stderr is not None
        said = []
        for line in command.stderr:
            said.append(line.rstrip())
            if after in line:
                os.killpg(command.pid, signal.SIGINT)
                break
        out, err = command.communicate(timeout=60)
    return command.returncode, out, [*said, *err.splitlines()]


def test_a_benchmark_prints_its_complete_rounds(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + LOOP)
    words = ("bench", "--json", "--repeats", "9", str(path))
    code, out, said = interrupted(tmp_path, *words, after=BETWEEN_ROUNDS)
    assert code == 0, said
    (found,) = json.loads(out)["comparisons"]
    assert len(found["measurements"]) == 2
    assert said[0].endswith("Ctrl-C keeps complete rounds")
    assert said[-1] == "cputrain bench: interrupted after 1 of 9 rounds"


def test_a_search_saves_the_best_so_far(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + LOOP)
    words = ("tune", "--json", "--steps", "10", str(path))
    code, out, said = interrupted(tmp_path, *words, after=AFTER_THE_RULES)
    assert code == 0, said
    found = json.loads(out)
    assert {"python", "rules"} <= {trial["stage"] for trial in found["trials"]}
    assert "interrupted" in json.dumps(found)
    assert Path(found["kept_in"]).exists()


@pytest.mark.parametrize("words", [("bench",), ("tune",)])
def test_before_there_is_a_result_it_ends_like_a_program_without_a_handler(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = script(tmp_path, TRAINS + LOOP)
    code, out, said = interrupted(tmp_path, *words, str(path), after="Ctrl-C keeps")
    assert code in (130, -signal.SIGINT), said
    assert out == ""
    assert not any("Traceback" in line for line in said), said

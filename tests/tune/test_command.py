"""`cputrain tune`, and launches that use what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cputrain.tune.store import circumstances
from tests.launch.programs import complaint, environment, launch, planned, script, verb
from tests.tune.test_trials import LOOP, TRAINS

MACHINE = """
import json, sys
from cputrain.machine import RootSource, read_machine
from cputrain.tune.store import TunedPlan, circumstances, save
machine = read_machine(RootSource(), detail=False)
known = circumstances(sys.argv[1], machine.fingerprint(), machine.budget.cpus)
save(sys.argv[1], known, TunedPlan(settings=json.loads(sys.argv[2]), reason="1.5 times as fast",
     when="2026-01-02", arguments=(), evidence={}))
"""


def keep(folder: Path, path: Path, settings: dict[str, str]) -> Path:
    """What tune would have kept, had it found these; its file."""
    import subprocess
    import sys

    command = [sys.executable, "-c", MACHINE, str(path), json.dumps(settings)]
    subprocess.run(command, check=True, env=environment(folder), cwd=folder)
    (kept,) = (folder / "home" / "cache" / "cputrain" / "tuned").iterdir()
    return kept


def test_a_tuned_plan_is_for_a_script_a_machine_and_versions(tmp_path: Path) -> None:
    path = script(tmp_path, "print(1)")
    known = circumstances(str(path), "a machine", (0, 2))
    assert known["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert known["cpus"] == [0, 2]
    assert known == circumstances(str(path), "a machine", (0, 2))
    path.write_text("print(2)")
    assert known["script"] != circumstances(str(path), "a machine", (0, 2))["script"]


@pytest.mark.long
def test_a_script_is_tuned_and_launched_so_from_then_on(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS + LOOP + "print(torch.get_num_threads())")
    done = verb(tmp_path, "tune", "--budget=60", "--steps=10", "--json", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    assert {"python", "rules", "alone"} <= {one["stage"] for one in found["trials"]}
    assert found["seconds"] < 90
    assert "plain python" in done.stderr
    kept = json.loads(Path(found["kept_in"]).read_text())
    assert kept["settings"] == found["settings"]
    assert launch(tmp_path, str(path)).returncode == 0
    decisions = planned(tmp_path, str(path))
    for name in found["settings"]:
        assert decisions[name]["origin"] == "measured"


def test_a_launch_uses_what_was_found_and_the_users_word_goes_before(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch; print(torch.get_num_threads())")
    keep(tmp_path, path, {"threads": "1", "fused_optimizer": "off"})
    assert launch(tmp_path, str(path)).stdout == "1\n"
    decisions = planned(tmp_path, str(path))
    assert decisions["threads"]["origin"] == "measured"
    assert "cputrain tune on 2026-01-02: 1.5 times as fast" in decisions["threads"]["reason"]
    assert decisions["fused_optimizer"]["value"] is False
    set_by_user = planned(tmp_path, "--fused-optimizer=on", str(path))
    assert set_by_user["fused_optimizer"]["origin"] == "user"
    assert set_by_user["threads"]["origin"] == "measured"


def test_what_was_found_is_not_used_when_something_changed(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch; print(torch.get_num_threads())")
    kept = keep(tmp_path, path, {"fused_optimizer": "off"})
    assert [one.name for one in kept.parent.iterdir()] == [kept.name]
    assert kept.stat().st_mode & 0o077 == 0  # nobody else's business
    path.write_text(path.read_text() + "\n# changed\n")
    done = launch(tmp_path, str(path))
    assert done.returncode == 0
    assert "the tuned plan is not used, because the script changed since" in done.stderr
    assert "measure again: cputrain tune" in done.stderr
    assert planned(tmp_path, str(path))["fused_optimizer"]["origin"] == "rule"
    kept.write_text("{")
    assert "cannot be read" in launch(tmp_path, str(path)).stderr
    kept.write_text(json.dumps({"path": str(path), "schema_version": 1}))
    assert "is broken" in launch(tmp_path, str(path)).stderr


@pytest.mark.parametrize(
    "settings", [{"allocator": "gone"}, {"threads": "many"}, {"threads": "1", "huge_pages": "?"}]
)
def test_what_cannot_be_carried_out_any_more_breaks_no_launch(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    path = script(tmp_path, "print('it runs')")
    keep(tmp_path, path, settings)
    done = launch(tmp_path, str(path))
    assert (done.returncode, done.stdout) == (0, "it runs\n"), done.stderr
    assert "huge_pages" in settings or "the tuned plan is not used: cputrain tune" in done.stderr
    wrong = complaint(launch(tmp_path, "--threads=none", str(path)))
    assert "--threads" in wrong


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--budget", "soon", "x.py"), "--budget must be a duration from 10s"),
        (("--steps", "1", "x.py"), "--steps must be a whole number from 5"),
        (("-",), "must be a file"),
        (("-m", "json"), "-m is not an option of cputrain tune"),
        (("missing.py",), "does not exist"),
    ],
)
def test_bad_input_is_one_clear_message(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    script(tmp_path, "print()")
    done = verb(tmp_path, "tune", *words)
    assert says in complaint(done, done.returncode)
    assert done.returncode in (2, 127)


@pytest.mark.long
def test_a_script_that_does_not_train_is_told_in_a_line(tmp_path: Path) -> None:
    path = script(tmp_path, "import torch; print('no training here')")
    done = verb(tmp_path, "tune", str(path))
    said = done.stderr.splitlines()
    assert (done.returncode, len(said)) == (2, 2), done.stderr
    assert "plans are tried for 2 min" in said[0]
    assert "must train for some steps under plain python; found no optimizer took a step" in said[1]
    assert "Steps of torch.optim.Optimizer and of its subclasses count." in said[1]

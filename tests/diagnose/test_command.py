"""`cputrain diagnose` on training scripts with a planted cause of slowness."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.machine import read_machine
from tests.diagnose.planted import GOOD, PLANTED
from tests.selected import cases

HAS_BFLOAT16 = bool({"avx512_bf16", "amx_bf16"} & set(read_machine(detail=False).isa))
"""Whether this CPU has bfloat16 units; without them, float32 costs nothing."""


@pytest.fixture(autouse=True)
def _roof_is_not_rough(roof_cache, roof_lock, monkeypatch):
    """Clear the roughness of the cached roof, or each test would measure it again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(roof_cache))
    path = roof_cache / "cputrain" / "roof.json"
    with roof_lock:
        if path.exists():
            document = json.loads(path.read_text())
            for entry in document.values():
                if isinstance(entry, dict):
                    entry["rough"] = []
            path.write_text(json.dumps(document))


def diagnose(folder, text, *options):
    path = folder / "train.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "diagnose", *options, str(path)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


MAX_ATTEMPTS = 3
"""Runs until the expected cause must be first, since other processes may disturb a run."""


def first_causes(folder, text):
    """Yield the first cause and the diagnosis of each attempt."""
    for _ in range(MAX_ATTEMPTS):
        done = diagnose(folder, text, "--json")
        assert done.returncode == 0, done.stderr
        diagnosis = json.loads(done.stdout)
        yield next((one["cause"] for one in diagnosis["findings"]), ""), diagnosis


@pytest.mark.alone
@pytest.mark.parametrize(
    "name",
    cases([name for name in PLANTED if name != "units" or HAS_BFLOAT16], ["memory"]),
)
def test_the_planted_cause_is_found_first(name, tmp_path):
    findings = []
    for first, diagnosis in first_causes(tmp_path, PLANTED[name]):
        assert diagnosis["schema_version"] == 1
        assert diagnosis["seen"]["operators"]
        assert abs(sum(one["share"] for one in diagnosis["layers"]) - 1) < 1e-6
        findings.append(
            [(one["cause"], one["title"], one["speedup"]) for one in diagnosis["findings"]]
        )
        if first == name:
            return
    raise AssertionError(findings)


@pytest.mark.alone
def test_a_fast_script_has_no_finding(tmp_path):
    text = GOOD if HAS_BFLOAT16 else GOOD.replace(".bfloat16()", "")
    assert "" in (first for first, _ in first_causes(tmp_path, text))


def test_remedies_are_tried_alone_and_together(tmp_path):
    done = diagnose(tmp_path, PLANTED["code"], "--json", "--apply", "--steps", "5")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads(done.stdout)
    assert all(one["exact"] for one in diagnosis["findings"] if one["settings"] in
               [each["settings"] for each in diagnosis["applied"][:-1]])  # fmt: skip
    *alone, last = diagnosis["applied"]
    first = next(one for one in alone if one["settings"] == {"fused_optimizer": "on"})
    assert first["fault"] == last["fault"] == ""
    assert first["predicted"] in [one["speedup"] for one in diagnosis["findings"]]
    assert first["measured"] > 0
    assert last["predicted"] is None
    assert last["measured"] > 0
    assert first["settings"].items() <= last["settings"].items()


def test_the_terminal_shows_findings_and_tables(tmp_path):
    done = diagnose(tmp_path, PLANTED["code"])
    assert done.returncode == 0, done.stderr
    for part in ("A step of", "1. ", "cputrain launch", "Time by layer", "Linear", "GFLOP/s"):
        assert part in done.stdout


@pytest.mark.long
def test_a_script_of_few_steps_is_diagnosed(tmp_path):
    done = diagnose(tmp_path, PLANTED["code"].replace("range(200)", "range(8)"), "--json")
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)["seen"]
    assert 2 <= profile["steps"] <= 5
    assert profile["operators"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise ValueError('of its own')", "it ended with exit code 1: ValueError: of its own"),
        ("import torch", "no optimizer took a step"),
        (
            # a slow first step shortens the warm-up by a step
            PLANTED["code"].replace("range(200)", "range(3)"),
            "steps after warm-up, and 3 are needed",
        ),
        ("import torch, os\nif os.fork(): os.wait()\n", "no optimizer took a step"),
    ],
)
def test_a_script_that_cannot_be_diagnosed_is_an_error(text, says, tmp_path):
    done = diagnose(tmp_path, text)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.long
def test_a_script_that_never_steps_is_given_up(tmp_path):
    done = diagnose(tmp_path, "import time, torch\nwhile True: time.sleep(1)", "--longest", "10")
    assert done.returncode == 2
    assert "it did not complete its steps within 10 s" in done.stderr


@pytest.mark.parametrize("steps", ["0", "1", "x", "1001"])
def test_numbers_of_steps_that_are_none(steps, tmp_path):
    done = diagnose(tmp_path, GOOD, "--steps", steps)
    assert done.returncode == 2
    assert "--steps must be a whole number from 2 to 1000" in done.stderr


def test_what_the_script_writes_is_thrown_away(tmp_path):
    writes = "open('written.txt', 'w').write('x')\n"
    done = diagnose(tmp_path, writes + PLANTED["overlap"], "--json", "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "written.txt").exists()

"""Comparing commands: real child processes, small scripts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cputrain.bench import as_markdown, compare
from cputrain.bench.measurement import parse_report
from cputrain.diagnose.step_roof import OperatorGap, StepRoof
from cputrain.errors import NotExecutable, NotFound, UsageError

COUNT = "with open(sys.argv[1], 'a') as log: log.write('x')\nRUNS = os.path.getsize(sys.argv[1])"
"""How often the script has run so far, this time included."""

REPORT = 'print(json.dumps({"losses": LOSSES, "seconds_per_step": TIMES, "samples_per_step": 8}))'


@pytest.fixture
def script(tmp_path: Path):
    """Writes a script and gives the command that runs it."""

    def write(body: str, name: str = "script.py") -> list[str]:
        path = tmp_path / name
        path.write_text("import json, os, sys, time\n" + body + "\n")
        return [sys.executable, "-S", str(path)]

    return write


@pytest.fixture
def reports(script):
    """A script that reports these losses and step times."""

    def write(name: str, losses: list[float], times: list[float]) -> list[str]:
        return script(f"LOSSES = {losses}\nTIMES = {times}\n{REPORT}", f"{name}.py")

    return write


def test_the_scripts_own_clock_counts_when_every_script_has_one(reports):
    found = compare(
        {
            "slow": reports("slow", [2.0, 1.0], [9.0, 4.0, 3.0]),
            "fast": reports("fast", [2.0], [2.0]),
        },
        repeats=3,
    )
    assert found.clock == "steps"
    assert found.side("slow").seconds == (4.0, 4.0, 4.0)
    assert found.side("fast").speedup.median == 2.0
    assert found.side("fast").samples_per_second == 4.0
    assert found.side("slow").speedup.median == 1.0


def test_whole_processes_are_timed_when_one_script_reports_no_times(script, reports):
    found = compare(
        {"silent": script("time.sleep(0.3)"), "fast": reports("fast", [1.0], [9.0])}, repeats=1
    )
    assert found.clock == "process"
    assert found.side("silent").median > 0.3
    assert found.side("fast").median < 9.0
    assert found.side("silent").samples_per_second is None


def test_the_order_turns_around_in_every_round(script, tmp_path):
    log = tmp_path / "log"
    told = []
    commands = {
        name: [*script("open(sys.argv[1], 'a').write(sys.argv[2])"), str(log), name]
        for name in "AB"
    }
    found = compare(commands, repeats=3, on_run=lambda name, number, _: told.append((name, number)))
    assert log.read_text() == "ABBAAB"
    assert told == [("A", 1), ("B", 1), ("B", 2), ("A", 2), ("A", 3), ("B", 3)]
    assert [run.name for run in found.measurements] == list("ABBAAB")


def test_speed_is_compared_within_a_round(script, tmp_path):
    commands = {}
    for name, cost in (("two", 2.0), ("one", 1.0)):
        slower_each_time = f"{COUNT}\nTIMES = [{cost} * RUNS]\nLOSSES = []\n{REPORT}"
        commands[name] = [*script(slower_each_time, f"{name}.py"), str(tmp_path / name)]
    found = compare(commands, repeats=3)
    assert found.side("two").seconds == (2.0, 4.0, 6.0)
    assert found.side("two").quartiles == (3.0, 5.0)
    speedup = found.side("one").speedup
    assert (speedup.lowest, speedup.median, speedup.highest) == (2.0, 2.0, 2.0)


def test_losses_are_compared_with_the_first_run_of_the_reference(reports):
    found = compare(
        {
            "python": reports("python", [2.0, 1.0], [1.0]),
            "other": reports("other", [2.0, 0.75], [1.0]),
        },
        repeats=2,
    )
    assert found.side("python").loss_difference == 0
    assert found.side("other").loss_difference == 0.25
    assert found.side("other").losses_compared == 2


def test_a_reference_that_does_not_repeat_shows_by_how_much(script, tmp_path):
    command = [
        *script(f"{COUNT}\nTIMES = [1.0]\nLOSSES = [RUNS]\n{REPORT}"),
        str(tmp_path / "count"),
    ]
    assert compare({"python": command}, repeats=2).side("python").loss_difference == 0.5


def test_a_reference_that_ran_once_is_compared_with_nothing(reports):
    assert compare({"a": reports("a", [1.0], [1.0])}, repeats=1).side("a").loss_difference is None


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        "no json",
        '{"losses": [1.0]}',
        '{"losses": [1.0], "seconds_per_step": 3}',
        '{"losses": [1.0], "seconds_per_step": [0.0]}',
        '{"losses": [1.0], "seconds_per_step": [1.0]}\n{"accuracy": 0.5}',
    ],
)
def test_a_script_that_ends_with_anything_else_reports_nothing(stdout):
    assert parse_report(stdout) == ((), (), None)


def test_the_report_is_found_before_a_last_line_that_is_no_json():
    line = '{"losses": [1.0], "seconds_per_step": [0.5]}'
    assert parse_report(f"hello\n{line}\n{{done}}\n") == ((0.5,), (1.0,), None)


@pytest.mark.parametrize(
    ("line", "losses"),
    [
        ("epoch 0: loss 0.7010, 4.3 batches a second", (0.701,)),
        ("Loss: 1.25e-03", (0.00125,)),
        ("train_loss=0.5 val_loss=-0.25", (0.5, -0.25)),
        ("a lossless 3.5, at a loss for 1.0 word", ()),
    ],
)
def test_losses_are_those_that_a_script_prints_in_its_own_words(line: str, losses: tuple) -> None:
    assert parse_report(f"begin\n{line}\n") == ((), losses, None)


def test_an_interrupt_keeps_complete_rounds(script):
    runs = []

    def interrupt(name: str, *_: object) -> None:
        runs.append(name)
        if len(runs) == 5:
            raise KeyboardInterrupt

    found = compare({"a": script("pass"), "b": script("pass")}, repeats=5, on_run=interrupt)
    assert found.repeats == 2
    assert len(found.measurements) == 4
    with pytest.raises(KeyboardInterrupt):
        compare({"a": script("pass"), "b": script("pass")}, on_run=lambda *_: _raise())


def _raise() -> None:
    raise KeyboardInterrupt


def test_children_get_a_clean_environment_and_no_stdin(script, monkeypatch):
    monkeypatch.setenv("CPUTRAIN_PLAN", "plan.json")
    monkeypatch.setenv("KEPT", "yes")
    body = "assert os.environ['KEPT'] == 'yes' and sys.stdin.read() == ''\n"
    compare({"a": script(body + "assert not any(k.startswith('CPUTRAIN_') for k in os.environ)")})


def test_a_command_that_fails_ends_the_comparison_and_shows_why(script, reports):
    failing = script("for i in range(30): print('line', i, file=sys.stderr)\nsys.exit(3)", "bad.py")
    with pytest.raises(UsageError) as caught:
        compare({"good": reports("good", [1.0], [1.0]), "bad": failing})
    message = str(caught.value)
    assert "'bad' must exit with code 0; found exit code 3." in message
    assert "bad.py" in message
    assert "line 29" in message
    assert "line 10\n" in message
    assert "line 9\n" not in message


def test_a_command_killed_by_a_signal_says_which(script):
    with pytest.raises(UsageError, match="termination by signal 9"):
        compare({"killed": script("os.kill(os.getpid(), 9)")})


def test_a_command_that_is_not_there_is_not_found():
    with pytest.raises(NotFound, match="no-such-interpreter"):
        compare({"a": ["/no-such-interpreter"]})


def test_a_command_that_is_no_program_is_not_executable(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(NotExecutable, match="chmod"):
        compare({"a": [str(tmp_path / "data")]})


@pytest.mark.parametrize(
    ("commands", "options", "named"),
    [
        ({}, {}, "commands must"),
        ({"a": ["true"]}, {"repeats": 0}, "repeats must"),
        ({"a": ["true"]}, {"against": "b"}, "against must"),
    ],
)
def test_a_broken_rule_is_named(commands, options, named):
    with pytest.raises(UsageError, match=named):
        compare(commands, **options)


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the kernel's figures need wait4")
def test_the_kernels_figures_are_kept(script):
    busy = "block = b'x' * 200_000_000\nwhile time.process_time() < 0.2: pass"
    side = compare({"a": script(busy)}, repeats=1).side("a")
    assert side.peak_rss_bytes is not None
    assert side.peak_rss_bytes > 200_000_000
    assert side.user_seconds is not None
    assert side.user_seconds + (side.system_seconds or 0) >= 0.2
    assert side.minor_faults


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_an_interrupt_ends_the_child(tmp_path, script):
    child = script(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    parent = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from cputrain.bench import compare; compare({{'a': {child!r}}})"
    )
    ours = subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ours.send_signal(signal.SIGINT)
    assert ours.wait(20) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_steps_are_compared_with_the_roof(reports):
    found = compare(
        {"slow": reports("slow", [1.0], [4.0]), "fast": reports("fast", [1.0], [1.25])}, repeats=1
    )
    assert "of the roof" not in as_markdown(found, title="x", machine_line="y")
    gaps = (OperatorGap(name="mm", calls=3, share=0.213),)
    found = found.replace(roof=StepRoof(product_seconds=0.75, memory_seconds=0.25, gaps=gaps))
    text = as_markdown(found, title="x", machine_line="y")
    cells = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    position = cells[0].index("of the roof")
    assert [row[position] for row in cells if row[0] in {"| slow", "| fast"}] == ["0.25", "0.80"]
    assert "The roof of a step is 1.00 s: 750 ms for its products" in text
    assert "lose most against their roofs: mm 21%." in text


def test_a_comparison_is_written_as_json_and_as_markdown(reports):
    found = compare(
        {"python": reports("python", [1.0], [0.3]), "launch": reports("launch", [1.0], [0.15])},
        repeats=2,
    )
    read = json.loads(json.dumps(found.as_json()))
    assert read["schema_version"] == 1
    assert read["sides"][1]["speedup"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert len(read["measurements"]) == 4
    text = as_markdown(found, title="tiny", machine_line="a machine")
    assert text.startswith("### tiny\n\na machine\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert len({row.count("|") for row in rows}) == 1
    assert "| launch | **2.00×** (2.00 to 2.00) | 150 ms |" in rows[3]
    assert "equal, 1 compared" in rows[3]

"""Progress of a search."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cputrain.report.trials import Lines, Live
from cputrain.tune.result import Trial

TRIALS = [
    Trial(stage="rules", settings={}, seconds=0.5, speedup=None, says="12 losses", good=True),
    Trial(
        stage="alone", settings={"a": "on"}, seconds=0.25, speedup=2.0, says="far off", good=False
    ),
]


def test_without_a_terminal_each_trial_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as watcher:
        for trial in TRIALS:
            watcher.trial_started(trial.stage, trial.settings, 10.0)
            watcher.trial_ended(trial)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "plans are tried" in shown.err.splitlines()[0]
    assert [line.split() for line in shown.err.splitlines()[1:]] == [
        ["rules", "rules", "500", "ms", "12", "losses"],
        ["alone", "a", "on", "250", "ms", "2.00×", "rejected:", "far", "off"],
    ]


def test_on_a_terminal_a_table_shows_the_running_trial_and_the_time_left() -> None:
    out = StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=10)
    with Live(console) as watcher:
        watcher.trial_started("rules", {}, 90.2)
        assert "rules: rules …" in out.getvalue()
        assert "90 s left; Ctrl-C keeps the best so far" in out.getvalue()
        for trial in TRIALS * 20:
            watcher.trial_ended(trial)
        last = out.getvalue().rpartition("\x1b[2K")[2]
        assert last.count("rejected: far off") == 2  # what fits on a screen of ten lines
        num_shown = len(out.getvalue())
    assert (
        out.getvalue()[num_shown:].count("rejected: far off") == 20
    )  # all rows are shown at the end
    assert "left" not in out.getvalue()[num_shown:]

"""A notebook, executed by a real kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launch.programs import LAUNCH
from tests.notebook.shells import in_notebook
from tests.notebook.test_magics import CELL, LOOP
from tests.notebook.test_setup import TRAIN

pytestmark = pytest.mark.executed


def test_a_notebook_is_set_up_and_trains_as_before(tmp_path: Path) -> None:
    """The same losses, fused updates, and fewer faults in the thread that runs cells."""
    before, setup, after, wrong, so_far, effects = in_notebook(
        tmp_path,
        TRAIN + "import json\nprint(json.dumps([train(), faults()]))",
        "import cputrain\ncputrain.setup(threads=1)",
        "print(json.dumps([train(), faults()]))",
        "cputrain.setup(threads=0)",
        "%load_ext cputrain\n%cputrain_setup --so-far",
        "print({str(step.effect) for step in cputrain.setup(threads=1).steps} - {'not applied'})",
    )
    losses, faults = json.loads(before.out)
    assert "<table" in setup.html
    assert setup.text.startswith("cputrain: ")
    assert "\x1b" not in setup.text
    assert json.loads(after.out)[0] == pytest.approx(losses, rel=1e-4)
    assert json.loads(after.out)[1] * 10 < faults
    assert wrong.err.startswith("UsageError: the argument threads must be")
    assert len(wrong.err.splitlines()) == 1
    assert "fused Adam (4 tensors)" in so_far.out
    assert "data loaders: 3 gathered from memory" in so_far.out
    assert "'applied'" not in effects.out


def test_a_server_under_a_launch_gives_its_kernels_the_whole_plan(tmp_path: Path) -> None:
    """What a setup says to type does what it says."""
    setup, variables = in_notebook(
        tmp_path,
        "import cputrain\nsetup = cputrain.setup()\nsetup",
        "import os; print(all(os.environ.get(name) == value for one in setup.plan.decisions"
        " for name, value in one.environment.items()))",
        before=(*LAUNCH, "--cmd", "--"),
    )
    assert setup.text.startswith("cputrain: nothing was changed\nalready so (under cputrain launch")
    assert "not applied" not in setup.text
    assert variables.out == "True\n"


@pytest.mark.long
def test_a_cell_is_tuned_in_a_notebook_and_its_table_stays(tmp_path: Path) -> None:
    _, tuned = in_notebook(
        tmp_path,
        "%load_ext cputrain",
        "%%cputrain_tune --budget 10 --steps 10 --apply no\n" + CELL + LOOP,
    )
    assert tuned.ok, tuned.err
    assert tuned.err == ""
    assert tuned.html.count("<table") == 1  # the one that grew has made room for it
    assert "plain python" in tuned.html

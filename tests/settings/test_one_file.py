"""A setting is added by one file: everything else about it follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ADDED = '''
"""Setting `anomaly_mode`: torch's detection of the operator whose gradient is NaN."""

from __future__ import annotations

from cputrain.settings.core.setting import Switch


class AnomalyModeSetting(Switch):
    """Whether autograd checks gradients for NaN."""

    name = "anomaly_mode"
    order = 15
    help = "check gradients for NaN (auto: off)"
    says_on = "gradients checked for NaN"
    says_off = "gradients not checked"
    reason = "it slows every step down"
    variables = frozenset({"ANOMALY_STEPS"})
    trial_order = 5

    def decide(self, machine, request):
        decision = super().decide(machine, request)
        return decision.replace(environment={"ANOMALY_STEPS": "3"} if decision.value else {})

    def modules(self, value):
        return ("colorsys",) if value else ()

    def after_import(self, module, value):
        module.WATCHED = value

    def candidates(self, situation):
        return ["on"]

    def apply(self, torch, value):
        return AnomalyMode(torch) if value else None


class AnomalyMode:
    def __init__(self, torch):
        self._torch = torch
        torch.autograd.set_detect_anomaly(True)

    def describe(self):
        return "gradients checked for NaN" if self._torch.is_anomaly_enabled() else ""

    def undo(self):
        self._torch.autograd.set_detect_anomaly(False)


SETTING = AnomalyModeSetting()
'''

SCRIPT = """
import colorsys, torch
from cputrain.runtime.library_variables import was_set
print(torch.is_anomaly_enabled(), hasattr(colorsys, "WATCHED"), was_set("ANOMALY_STEPS"))
"""

ON = "True True True\n"
OFF = "False False False\n"


class Copy:
    """A copy of cputrain with one more file, and a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__")
        package = folder / "copy" / "cputrain"
        shutil.copytree(ROOT / "cputrain", package, ignore=ignored)
        shutil.copytree(ROOT / "launch", package / "launch", ignore=ignored)
        (package / "settings/anomaly_mode.py").write_text(ADDED)
        (folder / "x.py").write_text(SCRIPT)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "cputrain.launch", *words, **variables)

    def python(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            (sys.executable, *words),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "copy"), **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("one_file"))


def test_it_is_an_option_a_variable_and_a_key(copy: Copy, tmp_path: Path) -> None:
    assert "--anomaly-mode auto|on|off" in copy.run("launch", "--help").stdout
    assert copy.run("launch", "x.py").stdout == OFF
    done = copy.run("launch", "--anomaly-mode", "on", "x.py")
    assert done.stdout == ON
    assert "gradients checked for NaN" in done.stderr
    assert copy.run("launch", "x.py", CPUTRAIN_ANOMALY_MODE="on").stdout == ON
    (tmp_path / "cputrain").mkdir()
    (tmp_path / "cputrain/config.toml").write_text("anomaly_mode = true\n")
    assert copy.run("launch", "x.py", XDG_CONFIG_HOME=str(tmp_path)).stdout == ON


def test_it_is_in_plans_and_in_saved_ones(copy: Copy) -> None:
    saved = copy.run("plan", "--json", "--anomaly-mode", "on", "x.py").stdout
    document = json.loads(saved)
    names = [decision["policy"] for decision in document["decisions"]]
    assert names.index("anomaly_mode") == names.index("threads") + 1  # as its order says
    (copy.folder / "plan.json").write_text(saved)
    assert copy.run("launch", "--plan", "plan.json", "x.py").stdout == ON
    assert "it slows every step down" in copy.run("plan", "--why-not", "anomaly-mode=on").stdout


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("value", "yes", "must be true or false"),
        ("environment", {"ANOMALY_STEPS": "many"}, "anomaly_mode may not set"),
        ("environment", {"PATH": "/tmp"}, "a plan may not set"),
    ],
)
def test_a_saved_plan_is_checked(copy: Copy, field: str, value: object, fault: str) -> None:
    document = json.loads(copy.run("plan", "--json", "--anomaly-mode", "on", "x.py").stdout)
    next(one for one in document["decisions"] if one["policy"] == "anomaly_mode")[field] = value
    read = "from cputrain.plan import read_plan\nimport sys\n"
    done = copy.python(
        "-c",
        f"{read}try: read_plan(sys.argv[1], 'p')\nexcept Exception as error: print(error)",
        json.dumps(document),
    )
    assert fault in done.stdout


def test_it_is_tried_by_tune_and_neutral_in_comparisons(copy: Copy) -> None:
    shown = copy.python(
        "-c",
        "from cputrain.settings.core.registry import PLAIN_VALUES, TRIED\n"
        "print(TRIED[0].name, TRIED[0].candidates(None), PLAIN_VALUES['anomaly_mode'])",
    )
    assert shown.stdout == "anomaly_mode ['on'] off\n"


def test_a_running_process_applies_and_undoes_it(copy: Copy) -> None:
    shown = copy.python(
        "-c",
        "import cputrain, torch\n"
        "for value in (True, True, False):\n"
        "    setup = cputrain.setup(anomaly_mode=value)\n"
        "    print(setup.step('anomaly_mode').effect, torch.is_anomaly_enabled())",
    )
    assert shown.stdout.splitlines() == ["applied True", "already so True", "applied False"]

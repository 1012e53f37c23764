"""Trials of real scripts: what they see, that they end, and that nothing stays of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cputrain.target import Target, TargetKind
from cputrain.tune.losses import compare_losses, make_reference
from cputrain.tune.trial import Script, TrialOutcome, run_trial
from tests.launch.programs import script
from tests.selected import cases

TRAINS = """
import json, os, sys, torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
values = json.loads(os.environ.get("CPUTRAIN_PLAN", "{}")).get("values", {})
if values.get("attention") == "math":  # stands for a transform that is wrong
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    def spoil(optimizer, *_, steps=[0]):
        steps[0] += 1
        for weight in net.parameters():
            weight.grad *= 0.9 if sys.argv[1:] == ["scaled"] else steps[0] % 10 != 0
    register_optimizer_step_pre_hook(spoil)
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)
"""

LOOP = """
for step in range(200):
    loss = (net(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def made(folder: Path, text: str, *arguments: str, **options: object) -> Script:
    path = script(folder, text)
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    target = Target(kind=TargetKind.SCRIPT, name=str(path), arguments=arguments)
    values = {"steps": 20, "environment": dict(os.environ), **options}
    return Script(target=target, folder=str(kept), **values)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables that steer launches, and a home and a working folder of its own."""
    for name in list(os.environ):
        if name.startswith(("CPUTRAIN", "OMP_", "MKL_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def trial(one: Script, settings: dict[str, str] | None = None) -> TrialOutcome:
    result = run_trial(one, settings)
    assert result.fault == "", result.fault
    return result


def test_steps_are_timed_and_losses_written_down_until_there_are_enough(tmp_path: Path) -> None:
    one = made(tmp_path, TRAINS + LOOP + "raise SystemExit('too far')")
    python, launched = trial(one), trial(one, {})
    assert len(python.times) == 20
    assert python.num_optimizers == 1
    assert python.step_s > 0
    assert python.peak_rss_bytes is not None
    assert python.startup_s is not None
    assert python.losses[0] > python.losses[-1] > 0
    assert len(python.losses) == 23
    assert launched.losses == pytest.approx(python.losses, rel=1e-5)
    assert trial(one).losses == python.losses  # the seeds are fixed


@pytest.mark.long
def test_slow_steps_are_few_unless_losses_are_wanted(tmp_path: Path) -> None:
    slow = LOOP + "    import time; time.sleep(0.1)"
    one = made(tmp_path, TRAINS + slow, seconds=0.15)
    few, thorough = trial(one), run_trial(one, None, thorough=True)
    assert (len(few.times), len(few.losses)) == (2, 4)
    assert 5 <= len(thorough.times) <= 9  # four times as long, and no longer
    assert thorough.losses[:4] == few.losses
    assert len(run_trial(one.replace(seconds=0.6), None, thorough=True).losses) == 12


def test_what_trials_print_and_compile_is_kept(tmp_path: Path) -> None:
    compiled = "open(os.path.join(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'made'), 'a').write('x')"
    one = made(tmp_path, "print('hello')\n" + TRAINS + compiled + LOOP)
    # set by torch too, in a process that has compiled
    one = one.replace(environment={**one.environment, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    trial(one)
    trial(one, {"threads": "1"})
    kept = Path(one.folder)
    assert (kept / "01-python.out").read_text() == "hello\n"
    assert (kept / "02-threads=1.out").read_text() == "hello\n"
    assert (kept / "compiled" / "made").read_text() == "xx"


def test_a_trial_that_is_disturbed_shows_what_rounding_does(tmp_path: Path) -> None:
    one = made(tmp_path, TRAINS + LOOP)
    python, disturbed = trial(one), run_trial(one, {}, disturbed=True)
    assert disturbed.losses[0] == pytest.approx(python.losses[0], rel=1e-6)
    assert disturbed.losses != python.losses
    assert disturbed.losses == pytest.approx(python.losses, rel=1e-3)


@pytest.mark.parametrize("fault", cases(["scaled", "dropped"], ["dropped"]))
def test_a_transform_that_is_wrong_is_rejected(tmp_path: Path, fault: str) -> None:
    one = made(tmp_path, TRAINS + LOOP, fault)
    python, disturbed = trial(one), run_trial(one, {}, disturbed=True)
    known = make_reference([python.losses, disturbed.losses])
    assert compare_losses(known, trial(one, {}).losses).good
    verdict = compare_losses(known, trial(one, {"attention": "math"}).losses)
    assert not verdict.good
    assert "differs from plain python's by" in verdict.says


def test_nothing_that_a_trial_writes_stays(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    text = (
        "import os\n"
        "open('new.txt', 'w').write('new'); open('old.txt', 'w').write('changed')\n"
        "os.makedirs(os.path.expanduser('~/deep/er')); os.system('touch from-a-shell')\n"
        + TRAINS
        + "torch.save(net.state_dict(), 'weights.pt')\n"
        + "assert torch.load('weights.pt') and open('new.txt').read() == 'new'\n"
        + LOOP
    )
    before = sorted(os.listdir(tmp_path))
    one = made(tmp_path, text)
    result = trial(one, {})
    assert len(result.times) == 20
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "x.py", "kept"])
    assert (tmp_path / "old.txt").read_text() == "old"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOOP.replace("200", "4"), "only 4 steps, and 5 are needed"),
        ("", "no optimizer took a step"),
        ("input('how many steps? ')", "EOFError"),
        ("raise ValueError('no data')", "exit code 1: ValueError: no data"),
        ("import os; os.abort()", "signal 6"),
    ],
    ids=["few steps", "no steps", "asks", "fails", "crashes"],
)
def test_a_script_that_does_not_train_says_why(tmp_path: Path, text: str, says: str) -> None:
    assert says in run_trial(made(tmp_path, TRAINS + text), {}).fault


def test_a_script_that_does_not_get_to_its_steps_is_ended(tmp_path: Path) -> None:
    text = "import subprocess, time; subprocess.Popen(['sleep', '61.5']); time.sleep(60)"
    result = run_trial(made(tmp_path, text), {}, longest=2.0)
    assert result.fault == "it did not complete its steps within 2 s"
    assert result.advice == "Try a longer --budget or fewer --steps."
    assert result.elapsed_s < 30
    commands = Path("/proc").glob("[0-9]*/cmdline")
    assert not any(b"sleep\x0061.5" in read(path) for path in commands)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has just ended
        return b""


OTHERS = {
    "a closure": """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
def closure():
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss
for _ in range(100):
    optimizer.step(closure)
""",
    "two optimizers": """
other = torch.optim.Adam(net[0].parameters())
for step in range(100):
    for one in (optimizer, other):
        one.zero_grad()
        (net(x) - y).square().mean().backward()
        one.step()
""",
    "accumulation and clipping": """
for step in range(400):
    ((net(x) - y).square().mean() / 4).backward()
    if step % 4 == 3:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
""",
    "a loader": """
from torch.utils.data import DataLoader, TensorDataset
for epoch in range(100):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16, num_workers=2 * (epoch % 2)):
        optimizer.zero_grad()
        (net(a) - b).square().mean().backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", cases(OTHERS, ["two optimizers", "a loader"]))
def test_scripts_of_all_kinds_are_seen(tmp_path: Path, name: str) -> None:
    one = made(tmp_path, TRAINS + OTHERS[name])
    python, launched = trial(one), trial(one, {})
    assert python.num_optimizers == (2 if name == "two optimizers" else 1)
    assert len(python.times) == 20
    assert launched.losses[:10] == pytest.approx(python.losses[:10], rel=1e-4)
    assert ("loader" in python.uses) == (name == "a loader")
    assert (sum(python.waits) > 0) == (name == "a loader")


def test_a_step_is_as_many_together_as_there_are_optimizers() -> None:
    one = TrialOutcome(settings={}, times=(1.0, 3.0, 1.0, 3.0), num_optimizers=2)
    assert one.step_s == 2.0
    assert one.replace(num_optimizers=1).step_s == 2.0
    assert one.replace(times=(1.0, 1.0, 9.0), num_optimizers=1).step_s == 1.0
    assert one.replace(num_optimizers=40).step_s == 2.0


# losses


def test_losses_may_be_as_far_as_rounding_takes_them_and_no_farther() -> None:
    known = make_reference([[1.0, 0.5, 0.25], [1.0, 0.500005, 0.2501]])
    assert known.allowed == pytest.approx((5e-4, 0.02, 0.02), rel=0.01)
    assert compare_losses(known, [1.0004, 0.509, 0.254]).good
    assert not compare_losses(known, [1.0006, 0.5, 0.25]).good
    assert not compare_losses(known, [1.0, 0.5, 0.256]).good
    assert not compare_losses(known, [1.0, 0.5, float("nan")]).good
    assert compare_losses(known, [1.01, 0.51, 0.26], reduced=True).good
    assert not compare_losses(known, [1.5, 0.8, 0.5], reduced=True).good


def test_gross_faults_are_found_in_chaos() -> None:
    known = make_reference([[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.03, 4.4, 9.0]])
    assert known.allowed == pytest.approx((1e-4, 0.2, 0.91, 1.9, 1.9), rel=0.01)
    assert compare_losses(known, [1.0, 2.1, 2.0, 20.0, 1.0]).good
    assert not compare_losses(known, [1.0, 3.0, 3.0, 4.0, 5.0]).good
    assert not compare_losses(known, [1.0, 2.0, 3.0, 4.0, float("nan")]).good
    assert not compare_losses(known, [2.0, 4.0, 6.0, 8.0, 10.0], reduced=True).good
    nothing = make_reference([[], []])
    assert compare_losses(nothing, [2.0]).good
    assert not compare_losses(nothing, [2.0], reduced=True).good

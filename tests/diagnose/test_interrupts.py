"""Ctrl-C keeps what a diagnosis has measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cputrain.diagnose import diagnosis as diagnosis_module
from cputrain.diagnose import remedies
from cputrain.machine import read_machine
from tests.diagnose.samples import ROOF, diagnosis, finding, operator, seen

MACHINE = read_machine(detail=False)

SCRIPT: Any = SimpleNamespace(target=SimpleNamespace(name="train.py"))


@pytest.mark.parametrize("num_runs", range(4))
def test_remedies_that_were_measured_are_kept(monkeypatch, num_runs):
    first, second = finding("first", settings={"threads": "1"}), finding("second", settings={})
    shown = diagnosis(MACHINE).replace(findings=(first, second))
    steps = iter([0.05, 0.04, 0.02][:num_runs])

    def profile(*_, **__):
        step = next(steps, None)
        if step is None:
            raise KeyboardInterrupt
        return seen(operator(), step=step), "2"

    monkeypatch.setattr(remedies, "profile_script", profile)
    told: list[str] = []
    tried = remedies.try_remedies(SCRIPT, shown, steps=12, longest=60, tell=told.append)
    assert [remedy.title for remedy in tried] == ["first", "second", remedies.ALL_REMEDIES][
        :num_runs
    ]
    assert [remedy.measured for remedy in tried] == pytest.approx([2.0, 2.5, 5.0][:num_runs])
    assert told[-1].startswith(f"interrupted after {num_runs} remed")
    assert "4 more runs" in told[0]


def test_a_diagnosis_without_its_second_run_is_shown(monkeypatch):
    profile = seen(operator("convolution", 0.1, flops=1e9, bytes=1e6))
    runs = iter([(profile, "2")])

    def run(*_, **__):
        try:
            return next(runs)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(diagnosis_module, "profile_script", run)
    monkeypatch.setattr(diagnosis_module, "machine_roof", lambda *_, **__: ROOF)
    monkeypatch.setattr(diagnosis_module, "product_seconds", lambda *_: run())
    told: list[str] = []
    shown = diagnosis_module.diagnose(SCRIPT, MACHINE, tell=told.append)
    assert shown.seen == profile
    assert told[-1] == "interrupted: what is known is shown"
    with pytest.raises(KeyboardInterrupt):  # before anything was measured
        diagnosis_module.diagnose(SCRIPT, MACHINE)

"""Builders of roofs, operators, step profiles and diagnoses with fixed figures."""

from __future__ import annotations

from cputrain.diagnose import Confidence, Diagnosis, Finding, TriedRemedy
from cputrain.diagnose.layers import layer_times
from cputrain.diagnose.machine_layout import machine_layout
from cputrain.diagnose.roof import Roof
from cputrain.diagnose.step_profile import OperatorTime, StepProfile

ROOF = Roof(
    torch="2", cores=4,
    flops_per_s={"float32": {"1": 1e11, "4": 4e11}, "bfloat16": {"1": 4e11, "4": 16e11}},
    bandwidth_bytes_per_s={"memory": {"1": 1e10, "4": 4e10}, "l3": {"1": 2e10, "4": 8e10},
                           "l2": {"1": 4e10, "4": 16e10}},
    team_seconds={"1": 0.0, "4": 1e-5}, call_seconds=1e-6, fault_seconds=1e-6,
)  # fmt: skip


def operator(name="mul", seconds=0.01, calls=1, **fields):
    defaults = {"shapes": ((8, 8),), "dtype": "float32", "phase": "forward", "layer": "Net.one",
             "flops": 0.0, "bytes": 0.0, "numbers": 0.0, "channels_last": False,
             "elementwise": name in {"mul", "add"}}  # fmt: skip
    return OperatorTime(name=name, seconds=seconds, calls=calls, **{**defaults, **fields})


def seen(*operators, **fields):
    """Return a step profile of 0.1 s with these operators."""
    defaults = {
        "step": 0.1, "spread": 0.01, "wait": 0.0, "backward": 0.04, "optimizer": 0.0, "threads": 4,
        "steps": 12, "kinds": {"Net.one": "Linear"}, "optimizers": (), "loaders": (),
        "counted": {}, "tiny": 0.0, "line": (), "clock": 0.0, "highest_clock": 0.0, "placed": {},
    }  # fmt: skip
    return StepProfile(operators=operators or (operator(seconds=0.1),), **{**defaults, **fields})


def finding(title, **fields):
    defaults = {"cause": "code", "lost_seconds": 0.05, "speedup": 2.0, "evidence": ("it was seen",),
             "remedy": "cputrain launch does it", "sure": Confidence.CALCULATED}  # fmt: skip
    return Finding(title=title, **{**defaults, **fields})


def diagnosis(machine, *, name="train.py"):
    """Return the diagnosis of a small network, with `name` in every text that a script provides."""
    layer = f"Net.{name}"
    operators = (
        operator("convolution", 0.02, shapes=((8, 3, 64, 64), (16, 3, 3, 3)), flops=2e9, bytes=1e8,
                 numbers=1e6, layer=layer),
        operator("mul", 0.01, calls=3, bytes=3e8, numbers=2e7, layer=layer),
        operator("convolution_backward", 0.04, flops=9e9, bytes=2e8, numbers=1e6, layer=layer,
                 phase="backward"),
        operator("sqrt", 0.01, calls=20, bytes=1e7, numbers=1e6, layer="", phase="optimizer"),
        operator(f"own::{name}", 0.001, layer="", numbers=0.0),
    )  # fmt: skip
    line = ((0, 0.001, 0.02), (1, 0.022, 0.003), (1, 0.026, 0.004), (2, 0.04, 0.04),
            *((3, 0.09 + 4e-5 * at, 2e-5) for at in range(20)), (4, 0.095, 0.001))  # fmt: skip
    profile = seen(
        *operators, wait=0.02, optimizer=0.01, kinds={layer: f"Conv2d{name}"}, line=line,
        loaders=("_SingleProcessDataLoaderIter",),
    )  # fmt: skip
    return Diagnosis(
        script=name, when="2026-01-01 12:00", cputrain="1",
        box=machine_layout(machine), roof=ROOF, seen=profile,
        findings=(finding(f"what {name} has"), finding("bits", exact=False, cause="units")),
        layers=layer_times(profile),
        applied=(
            TriedRemedy(title=f"what {name} has", settings={"fused_optimizer": "on"}, predicted=2.0,
                        measured=1.8),
            TriedRemedy(title="all", settings={}, predicted=None, measured=None,
                        fault=f"{name} ended"),
        ),
    )  # fmt: skip

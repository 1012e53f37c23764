"""Diagnoses beside busy processes are marked as rough, and have no impossible figures."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys

import pytest

from cputrain.bench.diagnoses.busy import busy_processes, diagnose_script
from cputrain.bench.diagnoses.impossible import impossible_figures
from cputrain.machine import read_machine
from tests.diagnose.planted import BEGIN, KEEPS_MEMORY, PLANTED, STEPS
from tests.diagnose.samples import diagnosis

MACHINE = read_machine(detail=False)

GROUPED = BEGIN + KEEPS_MEMORY + """
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ReLU(),
    nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 16, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(4, 3, 32, 32)
""" + STEPS  # fmt: skip
"""Grouped convolutions, whose weight gradients torch's counter multiplies by the groups."""


@pytest.mark.long
def test_beside_busy_processes_no_figure_is_impossible(tmp_path):
    """The cache is empty, so that the roof is measured beside the busy processes."""
    cache = tmp_path / "cache"
    scripts = {"grouped": GROUPED, "products": PLANTED["code"]}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    times = []
    with busy_processes(2):
        for name in scripts:
            words = ["--steps", "4", str(tmp_path / f"{name}.py")]
            row = diagnose_script(name, words, str(cache))
            assert row.impossible == ()
            assert any("was measured" in reason for reason in row.rough), row.rough
            times.append(row.measurements)
    # a rough roof is cached as rough, and measured again the next time
    assert times[1] > times[0] >= 1
    document = json.loads((cache / "cputrain" / "roof.json").read_text())
    (roof,) = (value for name, value in document.items() if name != "schema_version")
    assert roof["rough"]


def test_busy_processes_end_with_the_context():
    with pytest.raises(ZeroDivisionError), busy_processes(1):
        _ = 1 / 0
    with busy_processes(0):
        pass


@pytest.mark.parametrize(
    "text",
    ["235 GFLOP/s of 78.9 (298%)", "235 GFLOP/s of 78.9 GFLOP/s", "1.1 TFLOP/s of 900 GFLOP/s",
     "takes 101 % of a step", "saves -3% of a step", "60.2 GB/s of 20.1 GB/s"],
)  # fmt: skip
def test_impossible_rates_and_percentages_are_detected(text):
    good = diagnosis(MACHINE).as_json()
    assert impossible_figures(good, "78.9 GFLOP/s of 235 GFLOP/s (34%)") == []
    assert impossible_figures(good, text)


@pytest.mark.parametrize(
    "change",
    [
        lambda doc: doc["seen"]["operators"][0].update(flops=1e12),
        lambda doc: doc["seen"]["operators"][1].update(bytes=1e12),
        lambda doc: doc["seen"]["operators"][0].update(seconds=0.0),
        lambda doc: doc["roof"]["flops_per_s"]["float32"].update({"4": 1e9}),
        lambda doc: doc["roof"]["bandwidth_bytes_per_s"]["l3"].update({"4": 1e12}),
        lambda doc: doc["findings"][0].update(lost_seconds=-0.1),
        lambda doc: doc["findings"][0].update(lost_seconds=0.1),
        lambda doc: doc["findings"][0].update(speedup=0.9),
        lambda doc: doc["layers"][0].update(share=1.2),
    ],
)
def test_impossible_figures_of_a_document_are_detected(change):
    document = json.loads(json.dumps(diagnosis(MACHINE).as_json()))
    assert impossible_figures(document) == []
    change(document)
    assert impossible_figures(document)


def test_busy_processes_end_if_their_parent_is_killed() -> None:
    program = (
        "import os\n"
        "from cputrain.bench.diagnoses.busy import busy_processes\n"
        "with busy_processes(1):\n"
        "    print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        busy = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    ended, _, _ = select.select([busy], [], [], 30)
    os.close(busy)
    assert ended

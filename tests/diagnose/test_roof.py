"""What the machine can do at best."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.diagnose import roof
from cputrain.machine import read_machine

MACHINE = read_machine(detail=False)


@pytest.fixture(scope="module")
def figures():
    asked = {"cores": 2, "l2_bytes": 1 << 20, "l3_bytes": 1 << 22, "memory_bytes": 1 << 31}
    command = [sys.executable, "-P", "-m", "cputrain.diagnose.measuring", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    return json.loads(done.stdout)


def test_more_of_everything_is_faster(figures):
    found = roof.Roof(**figures)
    assert found.flops("float32", 1) > 1e8
    assert all(found.flops(name, 1) > 1e8 for name in found.flops_per_s)
    assert found.bandwidth(1, "l2") > found.bandwidth(1) * 0.8
    assert found.flops("float32", 64) == found.flops("float32", 2)
    assert 0 < found.call_seconds < 1e-3
    assert 0 < found.fault_seconds < 1e-3
    assert set(found.team_seconds) == {"1", "2"}


def test_products_are_timed():
    small, large = (64, 64, 64, "float32"), (512, 1024, 768, "float32")
    found = roof.product_seconds([small, large], threads=1)
    assert 0 < found[small] < found[large]
    assert roof.product_seconds([], threads=1) == {}


def test_it_is_measured_once(figures, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran = []

    def measure(*_):
        ran.append(1)
        return roof.Roof(**figures)

    monkeypatch.setattr(roof, "measure_roof", measure)
    first = roof.roof_of(MACHINE, "2.13.0")
    assert roof.roof_of(MACHINE, "2.13.0") == first
    assert len(ran) == 1
    roof.roof_of(MACHINE, "2.14.0")
    assert len(ran) == 2
    assert roof.roof_of(MACHINE, "2.13.0") == first
    (path,) = (tmp_path / "cputrain").glob("roof.json")
    path.write_text("{")
    assert roof.roof_of(MACHINE, "2.13.0") == first
    document = json.loads(path.read_text())
    document[next(one for one in document if one != "schema_version")] = {"cores": 1}
    path.write_text(json.dumps(document))
    assert roof.roof_of(MACHINE, "2.13.0") == first
    assert len(ran) == 4

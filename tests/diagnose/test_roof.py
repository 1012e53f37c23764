"""What the machine can do at best."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cputrain.diagnose import roof
from cputrain.diagnose.roof_benchmark import DisturbanceMonitor
from cputrain.machine import RootSource, read_machine
from cputrain.runtime.counters import Counters

MACHINE = read_machine(detail=False)


@pytest.fixture(scope="module")
def figures():
    asked = {"cores": 2, "l2_bytes": 1 << 20, "l3_bytes": 1 << 22, "memory_bytes": 1 << 31}
    command = [sys.executable, "-P", "-m", "cputrain.diagnose.roof_benchmark", json.dumps(asked)]
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
    assert 0 <= found.denormal_seconds < 1e-6
    assert found.bandwidth(1) >= found.streaming(1)
    assert found.cache_bytes == {"l2": 1 << 20, "l3": 1 << 22}
    assert set(found.team_seconds) == {"1", "2"}


def test_products_are_timed():
    small, large = (64, 64, 64, "float32"), (512, 1024, 768, "float32")
    found = roof.product_seconds([small, large], threads=1)
    assert 0 < found[small] < found[large]
    assert roof.product_seconds([], threads=1) == {}


@pytest.fixture
def measured(figures, monkeypatch, tmp_path):
    """What is measured from now on, one after the other, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    good = roof.Roof(**{**figures, "rough": ()})
    coming, taken = [], []

    def measure(*_):
        taken.append(coming.pop(0) if coming else good)
        return taken[-1]

    monkeypatch.setattr(roof, "measure_roof", measure)
    return good, coming, taken


def kept_file(tmp_path):
    (path,) = (tmp_path / "cputrain").glob("roof.json")
    document = json.loads(path.read_text())
    return path, document, next(name for name in document if name != "schema_version")


def test_it_is_measured_once(measured, tmp_path):
    good, _, taken = measured
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(taken) == 1
    roof.machine_roof(MACHINE, "2.14.0")
    assert len(taken) == 2
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(taken) == 2


GARBAGE = (
    {"cores": 1}, [], None, 3, "roof", {"flops_per_s": []}, {"cores": "2"}, {"rough": "yes"},
    {"flops_per_s": {"float32": {"1": "fast"}}}, {"flops_per_s": {"float32": {"0": 1.0}}},
    {"flops_per_s": {"float32": {"-1": 1.0}, "bfloat16": {"²": 1.0}}},
    {"bandwidth_bytes_per_s": {}}, {"bandwidth_bytes_per_s": {"memory": {"1": -1.0}}},
    {"cores": 0}, {"cache_bytes": {"l2": None}}, {"call_seconds": float("inf")},
    {"flops_per_s": {"float32": {"9" * 5000: 1.0}}},
)  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda one: str(one)[:40])
def test_an_entry_that_is_none_is_measured_again(garbage, measured, tmp_path):
    good, _, taken = measured
    roof.machine_roof(MACHINE, "2.13.0")
    path, document, key = kept_file(tmp_path)
    entry = {**document[key], **garbage} if isinstance(garbage, dict) and len(garbage) else garbage
    path.write_text(json.dumps({**document, key: garbage if garbage == {"cores": 1} else entry}))
    said = []
    assert roof.machine_roof(MACHINE, "2.13.0", tell=said.append) == good
    assert len(taken) == 2
    assert len(said) == (garbage is not None)
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(taken) == 2


@pytest.mark.parametrize("text", ["{", "[]", "3", "", "[" * 100_000, '{"schema_version": 9}'])
def test_a_file_that_is_none_is_written_anew(text, measured, tmp_path):
    good, _, taken = measured
    folder = tmp_path / "cputrain"
    folder.mkdir()
    (folder / "roof.json").write_text(text)
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(taken) == 1


def test_roofs_of_before_are_not_used_as_if_they_were_good(measured, tmp_path):
    """They did not tell whether others ran meanwhile."""
    good, _, taken = measured
    roof.machine_roof(MACHINE, "2.13.0")
    path, document, key = kept_file(tmp_path)
    half = {"float32": {"1": 1.0, "2": 1.0}, "bfloat16": {"1": 1.0, "2": 1.0}}
    new = {"streaming_bytes_per_s", "cache_bytes", "measurements", "rough"}
    old = {name: value for name, value in document[key].items() if name not in new}
    path.write_text(json.dumps({
        "schema_version": 1, key: {**old, "flops_per_s": half}, "another": {"cores": 1},
    }))  # fmt: skip
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(taken) == 2
    _, document, _ = kept_file(tmp_path)
    assert set(document) == {"schema_version", key}


def times(of, factor):
    """The same with rates that are so many times as high."""
    return of.replace(**{
        table: {name: {count: factor * rate for count, rate in rates.items()}
                for name, rates in getattr(of, table).items()}
        for table in ("flops_per_s", "bandwidth_bytes_per_s", "streaming_bytes_per_s")
    })  # fmt: skip


def test_a_rough_one_is_measured_again_until_it_is_good(measured):
    good, coming, taken = measured
    first = times(good, 0.5).replace(rough=("others",))
    second = times(good, 0.8).replace(rough=("others",))
    coming += [second, first]
    assert roof.machine_roof(MACHINE, "2") == second
    assert roof.machine_roof(MACHINE, "2") == second.replace(measurements=2)  # the best of both
    assert roof.machine_roof(MACHINE, "2") == good.replace(measurements=3)
    assert roof.machine_roof(MACHINE, "2") == good.replace(measurements=3)
    assert len(taken) == 3


def test_beside_a_good_one_a_rough_one_must_be_plausible(measured):
    good, coming, _ = measured
    coming.append(times(good, 1.2).replace(rough=("others",)))
    roof.machine_roof(MACHINE, "2")
    assert roof.machine_roof(MACHINE, "2") == times(good, 1.2).replace(measurements=2)
    coming.append(times(good, 3).replace(rough=("others",)))
    roof.machine_roof(MACHINE, "3")
    assert roof.machine_roof(MACHINE, "3") == good.replace(measurements=2)


def test_one_that_was_exceeded_is_measured_again(measured):
    good, coming, taken = measured
    coming += [times(good, 0.5), good, times(good, 0.9)]
    roof.machine_roof(MACHINE, "2")
    assert roof.machine_roof(MACHINE, "2", again=True) == good.replace(measurements=2)
    assert roof.machine_roof(MACHINE, "2", again=True) == good.replace(measurements=3)
    assert len(taken) == 3


def test_several_threads_that_are_slower_than_one_are_measured_again(figures, measured):
    good, coming, taken = measured
    table = {**figures["flops_per_s"], "float32": {"1": 1e11, "2": 0.5e11}}
    assert roof.has_inverted_rates({**figures, "flops_per_s": table})
    assert not roof.has_inverted_rates({
        **figures, "flops_per_s": {"float32": {"1": 1e11, "2": 0.99e11}},
        "bandwidth_bytes_per_s": {},
    })  # fmt: skip
    slow = good.replace(flops_per_s=table, rough=(roof.INVERTED,))
    assert slow.flops("float32", 2) == 1e11  # one of them may be used
    coming.append(slow)
    found = roof.machine_roof(MACHINE, "2")
    assert len(taken) == 2
    assert found.rough == ()


def monitor_of(folder=None, cpus=2):
    """Watches the live system, or what a folder says of one."""
    source = RootSource() if folder is None else RootSource(str(folder))
    return DisturbanceMonitor(Counters(source, tuple(range(cpus))), cores=2)


def test_a_machine_that_others_use_is_told_from_one_that_is_ours():
    """On figures as the system counts them."""
    quiet = {"at": 10.0, "busy_seconds": 20.0, "user_seconds": 19.0, "system_seconds": 1.0,
             "workers_seconds": 0.0, "steal_seconds": 0.0, "throttled_seconds": 0.0,
             "waiting_seconds": 0.1, "pressure_seconds": 9.0}  # fmt: skip
    monitor = monitor_of()
    assert monitor.disturbances(quiet) == []
    for counted, says in (
        ({"user_seconds": 14.0}, "other programs used 0.5 CPUs"),
        ({"user_seconds": 14.0, "steal_seconds": 5.0}, "other virtual machines of this host"),
        ({"throttled_seconds": 0.5}, "CPU quota was used up"),
        ({"waiting_seconds": 4.0}, "its threads waited for a CPU"),
        ({"busy_seconds": 0.0}, "programs waited for a CPU"),  # where nothing else is told
    ):
        (reason,) = monitor.disturbances({**quiet, **counted})
        assert says in reason
    assert monitor.disturbances({**quiet, "busy_seconds": 0.0, "pressure_seconds": 0.0}) == []
    # where there are more cores than may be used, others may have those
    assert monitor_of(cpus=16).disturbances({**quiet, "user_seconds": 14.0}) == []


def test_a_figure_that_was_disturbed_is_measured_again(tmp_path):
    """With a system that says so, while the first two are measured."""
    stat = tmp_path / "proc" / "stat"
    stat.parent.mkdir()
    ticks = [0]

    def advance(by):
        ticks[0] += by
        stat.write_text(f"cpu0 {ticks[0]} 0 0 0 0 0 0 0 0 0\n")

    def measuring(values, busy):
        def measure():
            advance(busy.pop(0))
            return values.pop(0)

        return measure

    advance(1)
    monitor = monitor_of(tmp_path)
    assert monitor.highest(measuring([3.0, 5.0, 4.0], [500, 500, 0])) == 5.0
    assert monitor.highest(measuring([3.0, 5.0], [0, 0])) == 3.0
    assert monitor.lowest(measuring([3.0, 1.0, 2.0], [500, 500, 500])) == 1.0
    (reason,) = monitor.rough()
    assert "other programs used" in reason
    assert monitor_of(tmp_path).rough() == []

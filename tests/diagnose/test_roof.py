"""Measuring, caching and merging of roofs."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from cputrain.diagnose import roof
from cputrain.diagnose.roof_benchmark import DisturbanceMonitor
from cputrain.machine import RootSource, read_machine
from cputrain.runtime.counters import Counters

MACHINE = read_machine(detail=False)


@pytest.fixture
def figures(roof_cache, roof_lock):
    with roof_lock, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(roof_cache))
        found, _ = roof.load_cached_roof(MACHINE, version("torch"))
        if found is None:
            found = roof.machine_roof(MACHINE, version("torch"))
    return found.as_json()


def test_measured_figures_are_plausible(figures):
    result = roof.Roof(**figures)
    assert result.flops("float32", 1) > 1e8
    assert all(result.flops(name, 1) > 1e8 for name in result.flops_per_s)
    assert result.bandwidth(1, "l2") > result.bandwidth(1) * 0.8
    assert result.flops("float32", 64) == result.flops("float32", 2)
    assert 0 < result.call_seconds < 1e-3
    assert 0 < result.fault_seconds < 1e-3
    assert 0 <= result.denormal_seconds < 1e-6
    assert result.bandwidth(1) >= result.streaming(1)
    assert set(result.cache_bytes) == {"l2", "l3"}
    assert "1" in result.team_seconds


def test_matrix_products_are_timed():
    small, large = (64, 64, 64, "float32"), (512, 1024, 768, "float32")
    result = roof.product_seconds([small, large], threads=1)
    assert 0 < result[small] < result[large]
    assert roof.product_seconds([], threads=1) == {}


@pytest.fixture
def measured(figures, monkeypatch, tmp_path):
    """Replace measuring: the good roof, the roofs to return first, and those returned so far."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    good = roof.Roof(**{**figures, "rough": (), "measurements": 1})
    queued, returned = [], []

    def measure(*_):
        returned.append(queued.pop(0) if queued else good)
        return returned[-1]

    monkeypatch.setattr(roof, "measure_roof", measure)
    return good, queued, returned


def cache_file(tmp_path):
    (path,) = (tmp_path / "cputrain").glob("roof.json")
    document = json.loads(path.read_text())
    return path, document, next(name for name in document if name != "schema_version")


def test_a_roof_is_measured_once_per_torch_version(measured, tmp_path):
    good, _, returned = measured
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(returned) == 1
    roof.machine_roof(MACHINE, "2.14.0")
    assert len(returned) == 2
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(returned) == 2


GARBAGE = (
    {"cores": 1}, [], None, 3, "roof", {"flops_per_s": []}, {"cores": "2"}, {"rough": "yes"},
    {"flops_per_s": {"float32": {"1": "fast"}}}, {"flops_per_s": {"float32": {"0": 1.0}}},
    {"flops_per_s": {"float32": {"-1": 1.0}, "bfloat16": {"²": 1.0}}},
    {"bandwidth_bytes_per_s": {}}, {"bandwidth_bytes_per_s": {"memory": {"1": -1.0}}},
    {"cores": 0}, {"cache_bytes": {"l2": None}}, {"call_seconds": float("inf")},
    {"flops_per_s": {"float32": {"9" * 5000: 1.0}}},
)  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda one: str(one)[:40])
def test_an_invalid_cache_entry_is_measured_again(garbage, measured, tmp_path):
    good, _, returned = measured
    roof.machine_roof(MACHINE, "2.13.0")
    path, document, key = cache_file(tmp_path)
    entry = {**document[key], **garbage} if isinstance(garbage, dict) and len(garbage) else garbage
    path.write_text(json.dumps({**document, key: garbage if garbage == {"cores": 1} else entry}))
    messages = []
    assert roof.machine_roof(MACHINE, "2.13.0", tell=messages.append) == good
    assert len(returned) == 2
    assert sum("is not used" in message for message in messages) == (garbage is not None)
    assert "about 15 s" in messages[-1]
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(returned) == 2


@pytest.mark.parametrize("text", ["{", "[]", "3", "", "[" * 100_000, '{"schema_version": 9}'])
def test_an_invalid_cache_file_is_replaced(text, measured, tmp_path):
    good, _, returned = measured
    folder = tmp_path / "cputrain"
    folder.mkdir()
    (folder / "roof.json").write_text(text)
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(returned) == 1


def test_roofs_of_an_older_schema_are_not_used(measured, tmp_path):
    """They do not say whether other processes ran."""
    good, _, returned = measured
    roof.machine_roof(MACHINE, "2.13.0")
    path, document, key = cache_file(tmp_path)
    half = {"float32": {"1": 1.0, "2": 1.0}, "bfloat16": {"1": 1.0, "2": 1.0}}
    new = {"streaming_bytes_per_s", "cache_bytes", "measurements", "rough"}
    old = {name: value for name, value in document[key].items() if name not in new}
    path.write_text(json.dumps({
        "schema_version": 1, key: {**old, "flops_per_s": half}, "another": {"cores": 1},
    }))  # fmt: skip
    assert roof.machine_roof(MACHINE, "2.13.0") == good
    assert len(returned) == 2
    _, document, _ = cache_file(tmp_path)
    assert set(document) == {"schema_version", key}


def scaled(original, factor):
    """Return the roof with its rates multiplied by a factor."""
    return original.replace(**{
        table: {name: {count: factor * rate for count, rate in rates.items()}
                for name, rates in getattr(original, table).items()}
        for table in ("flops_per_s", "bandwidth_bytes_per_s", "streaming_bytes_per_s")
    })  # fmt: skip


def test_a_rough_roof_is_measured_again_until_it_is_not_rough(measured):
    good, queued, returned = measured
    first = scaled(good, 0.5).replace(rough=("others",))
    second = scaled(good, 0.8).replace(rough=("others",))
    queued += [second, first]
    assert roof.machine_roof(MACHINE, "2") == second
    assert roof.machine_roof(MACHINE, "2") == second.replace(measurements=2)  # the best of both
    assert roof.machine_roof(MACHINE, "2") == good.replace(measurements=3)
    assert roof.machine_roof(MACHINE, "2") == good.replace(measurements=3)
    assert len(returned) == 3


def test_implausible_rates_of_a_rough_roof_are_dropped(measured):
    good, queued, _ = measured
    queued.append(scaled(good, 1.2).replace(rough=("others",)))
    roof.machine_roof(MACHINE, "2")
    assert roof.machine_roof(MACHINE, "2") == scaled(good, 1.2).replace(measurements=2)
    queued.append(scaled(good, 3).replace(rough=("others",)))
    roof.machine_roof(MACHINE, "3")
    assert roof.machine_roof(MACHINE, "3") == good.replace(measurements=2)


def test_an_exceeded_roof_is_measured_again(measured):
    good, queued, returned = measured
    queued += [scaled(good, 0.5), good, scaled(good, 0.9)]
    roof.machine_roof(MACHINE, "2")
    assert roof.machine_roof(MACHINE, "2", again=True) == good.replace(measurements=2)
    assert roof.machine_roof(MACHINE, "2", again=True) == good.replace(measurements=3)
    assert len(returned) == 3


def test_a_roof_with_inverted_rates_is_measured_again(figures, measured):
    good, queued, returned = measured
    table = {**figures["flops_per_s"], "float32": {"1": 1e11, "2": 0.5e11}}
    assert roof.has_inverted_rates({**figures, "flops_per_s": table})
    assert not roof.has_inverted_rates({
        **figures, "flops_per_s": {"float32": {"1": 1e11, "2": 0.99e11}},
        "bandwidth_bytes_per_s": {},
    })  # fmt: skip
    slow = good.replace(flops_per_s=table, rough=(roof.INVERTED,))
    assert slow.flops("float32", 2) == 1e11  # a single one of the threads may be used
    queued.append(slow)
    result = roof.machine_roof(MACHINE, "2")
    assert len(returned) == 2
    assert result.rough == ()


@pytest.mark.parametrize("is_inverted", [False, True])
def test_only_inverted_rates_make_a_roof_rough(is_inverted, figures, monkeypatch):
    rates = {"1": 1e11, "2": 0.5e11 if is_inverted else 2e11}
    document = {
        **figures, "flops_per_s": dict.fromkeys(figures["flops_per_s"], rates),
        "bandwidth_bytes_per_s": {
            level: dict.fromkeys(("1", "2"), 1e10) for level in figures["bandwidth_bytes_per_s"]
        },
        "rough": [],
    }  # fmt: skip
    monkeypatch.setattr(roof, "_run_benchmark", lambda *_: document)
    assert (roof.INVERTED in roof.measure_roof(MACHINE).rough) is is_inverted


def monitor_of(folder=None, cpus=2):
    """Return a monitor of the live system, or of the files in a folder."""
    source = RootSource() if folder is None else RootSource(str(folder))
    return DisturbanceMonitor(Counters(source, tuple(range(cpus))), cores=2)


def test_other_processes_on_the_cpus_are_disturbances():
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
        ({"busy_seconds": 0.0}, "programs waited for a CPU"),  # with pressure information alone
    ):
        (reason,) = monitor.disturbances({**quiet, **counted})
        assert says in reason
    assert monitor.disturbances({**quiet, "busy_seconds": 0.0, "pressure_seconds": 0.0}) == []
    # other processes may use the CPUs that are not needed
    assert monitor_of(cpus=16).disturbances({**quiet, "user_seconds": 14.0}) == []


def test_a_disturbed_figure_is_measured_again(tmp_path):
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

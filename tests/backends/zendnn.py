"""Comparison of the zendnn backend with the default; run by `make test-zendnn`."""

from __future__ import annotations

import pytest

from cputrain.backends.comparison import LAYER_KINDS, MAX_DIFFERENCE, compare_with_default
from cputrain.backends.findings import collect_findings
from cputrain.backends.probing import describe_host, probe_all
from cputrain.backends.zendnn import ZenDNN
from cputrain.machine import read_machine

MACHINE = read_machine(detail=False)
NEEDS = pytest.mark.skipif("avx512f" not in MACHINE.isa, reason="needs AVX-512")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def probed():
    (found,) = probe_all(describe_host(MACHINE), "zendnn")
    return found


@NEEDS
def test_it_can_be_had_here():
    found = probed()
    assert found.reason == ""
    assert found.version.startswith("2.13.0")
    assert found.environment == ZenDNN().environment()


@NEEDS
def test_every_kind_of_layer_has_a_verdict():
    """Which it is may depend on the CPU; that linear layers are right without caches does not."""
    (found,) = [
        one for one in collect_findings(MACHINE, examine=True) if one.probed.name == "zendnn"
    ]
    training, evaluation = found.verdict.training, found.verdict.evaluation
    assert [one.layer for one in training.layers] == list(LAYER_KINDS)
    for judged in (training, evaluation):
        assert judged.layers[0].fault == ""
        for one in judged.layers:
            far = one.differences.values()
            assert bool(one.fault) == (not far or any(d is None or d > MAX_DIFFERENCE for d in far))
            assert one.fault or one.speedup
        print("\n".join(f"{one.layer}: {one.fault or one.differences}" for one in judged.layers))
    assert collect_findings(MACHINE)[1].verdict == found.verdict  # it is kept


@NEEDS
def test_with_its_caches_it_trains_with_stale_numbers_and_is_found_out():
    cached = probed().replace(environment={})
    found = compare_with_default(cached, layers=("linear",), num_rounds=0, report=lambda _: None)
    assert found.training.fault.startswith("linear: ")

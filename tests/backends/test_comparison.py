"""Backends that compute something else are rejected; correct and faster ones are chosen."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from cputrain.backends import choose_backend, comparison, verdict
from cputrain.backends.comparison import (
    LAYER_KINDS,
    compare_arrays,
    compare_with_default,
    describe_fault,
)
from cputrain.backends.findings import (
    BackendFinding,
    _finding_of,
    require_backend,
    verdict_circumstances,
)
from cputrain.backends.layers import LAYERS
from cputrain.backends.probing import ProbeResult, describe_host, probe_all
from cputrain.backends.process import BackendProcess
from cputrain.backends.verdict import BackendVerdict, LayerResult, ModeVerdict
from cputrain.errors import CputrainError, UsageError
from cputrain.machine import read_machine

MACHINE = read_machine(detail=False)
HOST = describe_host(MACHINE)


def examined(name, layers=("linear",), num_rounds=3):
    (probed,) = probe_all(HOST, name)
    assert probed.reason == ""
    told = []
    found = compare_with_default(
        probed, layers=layers, num_rounds=num_rounds, turn_s=0.05, report=told.append
    )
    assert len(told) == len(layers) * (probed.trains + probed.evaluates)
    return BackendFinding(probed=probed, verdict=found)


@pytest.fixture
def steps(monkeypatch):
    """Gives a dict: how many seconds a step takes whom, whatever the machine is busy with."""
    taken = {"default": 1.0}
    ask = comparison._ProcessPair._request

    def asked(two, name, request):
        answer = ask(two, name, request)
        if "seconds" not in request:
            return answer
        assert answer["step"] > 0
        return {"step": taken[name]}

    monkeypatch.setattr(comparison._ProcessPair, "_request", asked)
    return taken


def test_one_that_is_right_and_faster_is_chosen(installed, steps):
    installed("remembers")
    steps["remembers"] = 0.25
    found = examined("remembers")
    assert found.verdict.training is None
    assert found.verdict.evaluation.speedup == 4.0
    assert choose_backend([found], training=False) == "remembers"
    assert choose_backend([found], training=True) == "default"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrong", "linear: its output differs by 1.0e-02"),
        pytest.param("stale", "it uses a stale weight", marks=pytest.mark.long),
        ("by-version", "it uses a stale weight, from before it changed (after a fused update)"),
    ],
)
def test_one_that_is_wrong_is_not_however_fast(installed, name, says):
    installed(name)
    found = examined(name)
    assert says in found.verdict.evaluation.fault
    assert choose_backend([found], training=False) == "default"


def test_one_that_cannot_be_imported_is_not_called_wrong(installed):
    installed("not-beside-torch")
    (probed,) = probe_all(HOST, "not-beside-torch")
    assert probed.reason == ""
    found = _finding_of(MACHINE, HOST, probed, examine=True)
    assert found.verdict is None
    assert found.probed.reason == (
        "it cannot be imported: ModuleNotFoundError: No module named 'deprecated'"
    )
    with pytest.raises(UsageError, match="must be an available backend"):
        require_backend(MACHINE, "not-beside-torch", "--backend")


@pytest.mark.long
def test_stale_weights_show_in_training_as_well(installed):
    installed("stale")
    found = examined("stale")
    assert "it uses a stale weight" in found.verdict.training.fault
    assert found.verdict.training.layers[0].differences["loss"] > 1e-3
    assert found.verdict.training.layers[0].differences["output"] <= 1e-6


@pytest.mark.long
def test_one_that_is_slower_is_right_and_not_chosen(installed, steps):
    installed("slow")
    steps["slow"] = 4.0
    found = examined("slow")
    assert found.verdict.evaluation.fault == ""
    assert found.verdict.evaluation.speedup == 0.25
    assert choose_backend([found], training=False) == "default"


@pytest.mark.parametrize(
    "layers", [("conv", "lstm"), pytest.param(LAYER_KINDS, marks=pytest.mark.long)]
)
def test_the_default_agrees_with_itself_in_every_kind_of_layer(installed, layers):
    """In both modes, to the last bit where nothing is added up in another order."""
    probed = ProbeResult(name="default", version="1", trains=True, evaluates=True)
    found = compare_with_default(probed, layers=layers, num_rounds=0, report=lambda _: None)
    for judged in (found.training, found.evaluation):
        assert judged.fault == ""
        assert [one.layer for one in judged.layers] == list(layers)
        assert max(max(one.differences.values()) for one in judged.layers) <= 1e-6


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param(
            "fails-in-training", "RuntimeError: no kernel for this", marks=pytest.mark.long
        ),
        ("dies-in-training", "its process was killed by SIGABRT"),
    ],
)
def test_what_fails_is_a_finding_and_the_rest_is_examined(installed, name, says):
    installed(name)
    found = examined(name, layers=("linear", "embedding"), num_rounds=1)
    assert [one.fault for one in found.verdict.training.layers] == [says, says]
    assert found.verdict.evaluation.fault == ""


def test_variables_are_set_before(installed):
    installed("variables")
    assert examined("variables", num_rounds=1).verdict.evaluation.fault == ""


@pytest.mark.long
def test_a_legacy_one_is_never_chosen(installed, steps):
    installed("legacy")
    steps["legacy"] = 0.25
    found = examined("legacy", num_rounds=1)
    assert found.verdict.evaluation.is_preferable
    assert choose_backend([found], training=False) == "default"


def arrays(**values):
    return {name.replace("_", " "): np.array(one, dtype=np.float32) for name, one in values.items()}


def test_differences_are_relative_and_the_farthest_of_their_kind():
    whole = arrays(output=[3.0, 4.0], gradient_a=[1.0, 0.0], gradient_b=[1e-6, 0.0])
    other = arrays(output=[3.0, 4.5], gradient_a=[1.0, 0.0], gradient_b=[2e-6, 0.0])
    found = compare_arrays(whole, other)
    assert found["output"] == pytest.approx(0.1)
    assert found["gradient"] == pytest.approx(1e-4)  # held against the largest
    assert describe_fault(found, whole, other) == "its output differs by 1.0e-01"


def test_gradients_may_lie_in_another_order():
    whole, other = arrays(gradient_a=[[1.0, 2.0], [3.0, 4.0]]), arrays(gradient_a=[4, 3, 2, 1])
    assert compare_arrays(whole, other) == {"gradient": 0.0}
    assert compare_arrays(arrays(output=[[1.0, 2.0]]), arrays(output=[1, 2])) == {"output": None}


@pytest.mark.parametrize(
    "other", [{"output": [np.nan, 1.0]}, {"output": [np.inf, 1.0]}, {"output": [1.0]}, {}]
)
def test_what_is_no_number_is_a_fault(other):
    whole, other = arrays(output=[1.0, 1.0]), arrays(**other)
    found = compare_arrays(whole, other)
    assert found == {"output": None}
    says = "its output is not a finite number" if other else "it returns no output"
    assert describe_fault(found, whole, other) == says


def test_every_layer_is_examined():
    assert tuple(LAYERS) == LAYER_KINDS


def test_each_kind_of_layer_must_be_as_fast():
    layers = [LayerResult(layer=name, speedup=2.0) for name in LAYER_KINDS]
    assert ModeVerdict(layers=tuple(layers)).is_preferable
    assert not ModeVerdict(layers=(*layers, LayerResult(layer="other", speedup=0.9))).is_preferable
    assert not ModeVerdict(layers=(*layers, LayerResult(layer="other"))).is_preferable
    assert not ModeVerdict(layers=tuple(one.replace(speedup=1.01) for one in layers)).is_preferable


def of(name="planted"):
    probed = ProbeResult(name=name, version="1.0", evaluates=True)
    layer = LayerResult(layer="linear", differences={"output": None}, fault="it is", speedup=1.5)
    judged = ModeVerdict(layers=(layer,))
    return probed, BackendVerdict(
        backend=name, version="1.0", when="2026-01-02", training=None, evaluation=judged
    )


def test_a_verdict_is_kept_until_something_changes(installed):
    probed, found = of()
    known = verdict_circumstances(MACHINE, HOST, probed)
    path = verdict.save_verdict(found, known)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert verdict.load_verdict("planted", known) == (found, "")
    assert _finding_of(MACHINE, HOST, probed, False).verdict == found
    newer = verdict_circumstances(MACHINE, HOST, probed.replace(version="1.1"))
    assert verdict.load_verdict("planted", newer) == (
        None,
        "the backend changed since it was examined",
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:50], "cannot be read"),
        (
            lambda text: text.replace(
                f'"schema_version": {verdict.SCHEMA_VERSION}', '"schema_version": 99'
            ),
            "another version",
        ),
        (lambda text: text.replace('"2026-01-02"', "7"), "invalid"),
        (lambda text: text.replace('"layers"', '"other"'), "invalid"),
        (lambda _: "[]", "invalid"),
        (lambda text: text.replace("1.5", '"fast"'), "invalid"),
    ],
)
def test_a_damaged_verdict_is_none(installed, change, says):
    probed, found = of()
    known = verdict_circumstances(MACHINE, HOST, probed)
    path = verdict.save_verdict(found, known)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(change(text))
    none, why = verdict.load_verdict("planted", known)
    assert none is None
    assert says in why
    assert json.dumps(found.as_json())


def test_what_a_backend_has_started_ends_with_it(installed):
    installed("starts-others")
    (probed,) = probe_all(HOST, "starts-others")
    process = BackendProcess("examine", "starts-others", environment=probed.environment)
    process.send({"layer": "embedding", "training": False, "write": os.devnull})
    answer = process.receive(60)
    (group,) = {os.getpgid(process._child.pid)}
    process.end()
    assert answer is not None
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("somebody is left")


def test_one_that_does_not_answer_is_ended(installed, monkeypatch):
    monkeypatch.setattr(comparison, "LAYER_TIMEOUT_S", 0.01)
    installed("remembers")
    (probed,) = probe_all(HOST, "remembers")
    with pytest.raises(CputrainError, match="did not answer"):
        compare_with_default(probed, layers=("linear",), report=lambda _: None)

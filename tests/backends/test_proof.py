"""Who computes something else is found out, and who is right and faster is chosen."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from cputrain.backends import chosen, proof, verdict
from cputrain.backends.findings import Finding, _finding, circumstances, named
from cputrain.backends.layers import LAYERS
from cputrain.backends.probing import Probed, host_of, probe_all
from cputrain.backends.process import Process
from cputrain.backends.proof import KINDS, compared, fault_of, prove
from cputrain.backends.verdict import Judged, LayerFound, Verdict
from cputrain.errors import CputrainError, UsageError
from cputrain.machine import read_machine

MACHINE = read_machine(detail=False)
HOST = host_of(MACHINE)


def examined(name, layers=("linear",), rounds=3):
    (probed,) = probe_all(HOST, name)
    assert probed.reason == ""
    told = []
    found = prove(probed, layers=layers, rounds=rounds, turn=0.05, tell=told.append)
    assert len(told) == len(layers) * (probed.trains + probed.evaluates)
    return Finding(probed=probed, verdict=found)


@pytest.fixture
def steps(monkeypatch):
    """Gives a dict: how many seconds a step takes whom, whatever the machine is busy with."""
    taken = {"default": 1.0}
    ask = proof._Two._ask

    def asked(two, name, request):
        answer = ask(two, name, request)
        if "seconds" not in request:
            return answer
        assert answer["step"] > 0
        return {"step": taken[name]}

    monkeypatch.setattr(proof._Two, "_ask", asked)
    return taken


def test_one_that_is_right_and_faster_is_chosen(installed, steps):
    installed("remembers")
    steps["remembers"] = 0.25
    found = examined("remembers")
    assert found.verdict.training is None
    assert found.verdict.evaluation.speedup == 4.0
    assert chosen([found], training=False) == "remembers"
    assert chosen([found], training=True) == "default"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrong", "linear: its output differs by 1.0e-02"),
        ("stale", "as it was before it changed"),
        ("by-version", "as it was before it changed (after a fused update)"),
    ],
)
def test_one_that_is_wrong_is_not_however_fast(installed, name, says):
    installed(name)
    found = examined(name)
    assert says in found.verdict.evaluation.fault
    assert chosen([found], training=False) == "default"


def test_one_that_cannot_be_imported_is_not_called_wrong(installed):
    installed("not-beside-torch")
    (probed,) = probe_all(HOST, "not-beside-torch")
    assert probed.reason == ""
    found = _finding(MACHINE, HOST, probed, examine=True)
    assert found.verdict is None
    assert found.probed.reason == (
        "it cannot be imported: ModuleNotFoundError: No module named 'deprecated'"
    )
    with pytest.raises(UsageError, match="must be a backend that can be had"):
        named(MACHINE, "not-beside-torch", "--backend")


def test_stale_weights_show_in_training_as_well(installed):
    installed("stale")
    found = examined("stale")
    assert "as it was before it changed" in found.verdict.training.fault
    assert found.verdict.training.layers[0].differences["loss"] > 1e-3
    assert found.verdict.training.layers[0].differences["output"] <= 1e-6


def test_one_that_is_slower_is_right_and_not_chosen(installed, steps):
    installed("slow")
    steps["slow"] = 4.0
    found = examined("slow")
    assert found.verdict.evaluation.fault == ""
    assert found.verdict.evaluation.speedup == 0.25
    assert chosen([found], training=False) == "default"


def test_the_default_agrees_with_itself_in_every_kind_of_layer(installed):
    """In both modes, to the last bit where nothing is added up in another order."""
    probed = Probed(name="default", version="1", trains=True, evaluates=True)
    found = prove(probed, layers=KINDS, rounds=0, tell=lambda _: None)
    for judged in (found.training, found.evaluation):
        assert judged.fault == ""
        assert [one.layer for one in judged.layers] == list(KINDS)
        assert max(max(one.differences.values()) for one in judged.layers) <= 1e-6


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fails-in-training", "RuntimeError: no kernel for this"),
        ("dies-in-training", "its process was ended by SIGABRT"),
    ],
)
def test_what_fails_is_a_finding_and_the_rest_is_examined(installed, name, says):
    installed(name)
    found = examined(name, layers=("linear", "embedding"), rounds=1)
    assert [one.fault for one in found.verdict.training.layers] == [says, says]
    assert found.verdict.evaluation.fault == ""


def test_variables_are_set_before(installed):
    installed("variables")
    assert examined("variables", rounds=1).verdict.evaluation.fault == ""


def test_a_legacy_one_is_never_chosen(installed, steps):
    installed("legacy")
    steps["legacy"] = 0.25
    found = examined("legacy", rounds=1)
    assert found.verdict.evaluation.pays
    assert chosen([found], training=False) == "default"


def arrays(**values):
    return {name.replace("_", " "): np.array(one, dtype=np.float32) for name, one in values.items()}


def test_differences_are_relative_and_the_farthest_of_their_kind():
    whole = arrays(output=[3.0, 4.0], gradient_a=[1.0, 0.0], gradient_b=[1e-6, 0.0])
    other = arrays(output=[3.0, 4.5], gradient_a=[1.0, 0.0], gradient_b=[2e-6, 0.0])
    found = compared(whole, other)
    assert found["output"] == pytest.approx(0.1)
    assert found["gradient"] == pytest.approx(1e-4)  # held against the largest
    assert fault_of(found, whole, other) == "its output differs by 1.0e-01"


def test_gradients_may_lie_in_another_order():
    whole, other = arrays(gradient_a=[[1.0, 2.0], [3.0, 4.0]]), arrays(gradient_a=[4, 3, 2, 1])
    assert compared(whole, other) == {"gradient": 0.0}
    assert compared(arrays(output=[[1.0, 2.0]]), arrays(output=[1, 2])) == {"output": None}


@pytest.mark.parametrize(
    "other", [{"output": [np.nan, 1.0]}, {"output": [np.inf, 1.0]}, {"output": [1.0]}, {}]
)
def test_what_is_no_number_is_a_fault(other):
    whole, other = arrays(output=[1.0, 1.0]), arrays(**other)
    found = compared(whole, other)
    assert found == {"output": None}
    says = "its output is not a number" if other else "it gives no output"
    assert fault_of(found, whole, other) == says


def test_every_layer_is_examined():
    assert tuple(LAYERS) == KINDS


def test_each_kind_of_layer_must_be_as_fast():
    layers = [LayerFound(layer=name, speedup=2.0) for name in KINDS]
    assert Judged(layers=tuple(layers)).pays
    assert not Judged(layers=(*layers, LayerFound(layer="other", speedup=0.9))).pays
    assert not Judged(layers=(*layers, LayerFound(layer="other"))).pays
    assert not Judged(layers=tuple(one.replace(speedup=1.01) for one in layers)).pays


def of(name="planted"):
    probed = Probed(name=name, version="1.0", evaluates=True)
    layer = LayerFound(layer="linear", differences={"output": None}, fault="it is", speedup=1.5)
    judged = Judged(layers=(layer,))
    return probed, Verdict(
        backend=name, version="1.0", when="2026-01-02", training=None, evaluation=judged
    )


def test_a_verdict_is_kept_until_something_changes(installed):
    probed, found = of()
    known = circumstances(MACHINE, HOST, probed)
    path = verdict.save(found, known)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert verdict.load("planted", known) == (found, "")
    assert _finding(MACHINE, HOST, probed, False).verdict == found
    newer = circumstances(MACHINE, HOST, probed.replace(version="1.1"))
    assert verdict.load("planted", newer) == (None, "the backend changed since it was examined")


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
        (lambda text: text.replace('"2026-01-02"', "7"), "broken"),
        (lambda text: text.replace('"layers"', '"other"'), "broken"),
        (lambda _: "[]", "broken"),
        (lambda text: text.replace("1.5", '"fast"'), "broken"),
    ],
)
def test_a_damaged_verdict_is_none(installed, change, says):
    probed, found = of()
    known = circumstances(MACHINE, HOST, probed)
    path = verdict.save(found, known)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(change(text))
    none, why = verdict.load("planted", known)
    assert none is None
    assert says in why
    assert json.dumps(found.as_json())


def test_what_a_backend_has_started_ends_with_it(installed):
    installed("starts-others")
    (probed,) = probe_all(HOST, "starts-others")
    process = Process("examine", "starts-others", environment=probed.environment)
    process.tell({"layer": "embedding", "training": False, "write": os.devnull})
    answer = process.answer(60)
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
    monkeypatch.setattr(proof, "LONGEST", 0.01)
    installed("remembers")
    (probed,) = probe_all(HOST, "remembers")
    with pytest.raises(CputrainError, match="does not answer"):
        prove(probed, layers=("linear",), tell=lambda _: None)

"""No figure exceeds the roof, for generated roofs and operators."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain.bench.diagnoses.impossible import impossible_figures, text_of_page
from cputrain.diagnose import Diagnosis, compare
from cputrain.diagnose import diagnosis as diagnosis_module
from cputrain.diagnose.causes import CAUSES
from cputrain.diagnose.consistency import EXCEEDED, operators_above_roof, reconcile
from cputrain.diagnose.finding import Confidence, DiagnosedCase, make_finding
from cputrain.diagnose.layers import layer_times
from cputrain.diagnose.machine_layout import machine_layout
from cputrain.diagnose.records import record_from
from cputrain.diagnose.roof import Roof
from cputrain.machine import read_machine
from cputrain.report.diagnoses import show_compared, show_diagnosis
from cputrain.report.page import diagnosis_page
from cputrain.report.terminal import console
from tests.diagnose.samples import ROOF, finding, operator, seen

MACHINE = read_machine(detail=False)

rates = st.floats(1e3, 1e15)


@st.composite
def tables(draw, names):
    """Draw rates by thread count; more threads may be slower."""
    threads = draw(st.sets(st.sampled_from([2, 3, 4, 8, 64]), max_size=3)) | {1}
    return {name: {str(count): draw(rates) for count in threads} for name in names}


@st.composite
def roofs(draw):
    levels = ["memory", "l3", "l2"]
    more = draw(st.sets(st.sampled_from(["int8", "float16", "float64"])))
    return Roof(
        torch="2", cores=draw(st.integers(1, 64)),
        flops_per_s=draw(tables(["float32", "bfloat16", *sorted(more)])),
        bandwidth_bytes_per_s=draw(tables(levels)),
        streaming_bytes_per_s=draw(st.one_of(st.just({}), tables(levels))),
        cache_bytes=draw(st.one_of(
            st.just({}), st.fixed_dictionaries({"l2": st.floats(0, 1e7), "l3": st.floats(0, 1e9)})
        )),
        team_seconds={"1": 0.0}, call_seconds=1e-6, fault_seconds=draw(st.floats(0, 1e-3)),
        rough=draw(st.sampled_from([(), ("others used 2.0 CPUs",)])),
    )  # fmt: skip


amounts = st.one_of(st.just(0.0), st.floats(1e-3, 1e15))
operators = st.builds(
    operator,
    name=st.sampled_from(["mm", "addmm", "convolution", "convolution_backward", "mul", "add_",
                          "mkldnn_rnn_layer", "theirs"]),
    seconds=st.one_of(st.just(0.0), st.floats(1e-9, 100)),
    calls=st.integers(1, 100), flops=amounts, bytes=amounts, numbers=amounts,
    shapes=st.sampled_from([((8, 8),), ((500, 33), (33, 70)), ((8, 16, 32, 32), (16, 16, 3, 3))]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16", "float64", "int8", "int64", ""]),
    computed_in=st.sampled_from(["", "bfloat16"]),
    phase=st.sampled_from(["forward", "backward", "optimizer"]),
    elementwise=st.booleans(), channels_last=st.booleans(),
)  # fmt: skip
part = st.floats(0, 10)


@st.composite
def steps(draw):
    each = draw(st.lists(operators, min_size=1, max_size=5))
    line = draw(st.lists(st.integers(0, len(each) - 1), max_size=8))
    return seen(
        *each, step=draw(st.floats(1e-6, 10)), wait=draw(part), backward=draw(part),
        optimizer=draw(part), spread=draw(st.floats(0, 5)), threads=draw(st.integers(1, 128)),
        line=tuple((which, 0.1 * at, 0.1) for at, which in enumerate(line)),
        tiny=draw(st.sampled_from([0.0, 0.5])),
        loaders=draw(st.sampled_from([(), ("_SingleProcessDataLoaderIter",),
                                      ("_MultiProcessingDataLoaderIter",)])),
        optimizers=draw(st.sampled_from([(), ({"name": "AdamW", "fused": False, "can_fuse": True,
                                               "tensors": 9, "bytes": 1 << 30},)])),
        counted={"busy_seconds": draw(part), "user_seconds": draw(part),
                 "system_seconds": draw(part), "faults": draw(st.floats(0, 1e9)),
                 "throttled_seconds": draw(part), "hot": draw(st.sampled_from([0.0, 1.0]))},
        clock=2e9, highest_clock=4e9,
    )  # fmt: skip


@st.composite
def diagnoses(draw):
    """Draw a diagnosis with the findings of every cause."""
    roof, profile = draw(roofs()), draw(steps())
    fewer = draw(st.one_of(st.none(), steps()))
    case = DiagnosedCase(machine=MACHINE, roof=roof, seen=profile, fewer=fewer,
                products=draw(st.sampled_from([{}, {(500, 70, 33, "float32"): 0.5,
                                                    (512, 128, 64, "float32"): 0.1}])))  # fmt: skip
    return Diagnosis(
        script="train.py", when="2026-01-01 12:00", cputrain="1",
        box=machine_layout(MACHINE), roof=roof, seen=profile,
        findings=tuple(each for cause in CAUSES for each in cause.find(case)),
        layers=layer_times(profile),
    )  # fmt: skip


def shown(show, what):
    out = io.StringIO()
    show(console(out, plain=True), what)
    return out.getvalue()


many = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


@many
@given(diagnoses())
@pytest.mark.long
def test_no_figure_is_above_the_roof(diagnosis):
    document = json.loads(json.dumps(diagnosis.as_json(), allow_nan=False))
    texts = shown(show_diagnosis, diagnosis), text_of_page(diagnosis_page(diagnosis))
    assert impossible_figures(document, *texts) == []
    if diagnosis.rough:
        assert document["rough"]
        for text in texts:
            assert "Figures are rough" in " ".join(text.split())
    # a document that was read is the same
    again = record_from(Diagnosis, document)
    assert json.loads(json.dumps(again.as_json())) == document


@many
@given(diagnoses(), diagnoses())
def test_no_figure_of_a_comparison_is_above_the_roof(before, after):
    compared = compare(before, after)
    text = shown(show_compared, compared)
    assert impossible_figures(before.as_json(), text) == []
    assert bool(compared.rough) == bool(before.rough or after.rough)
    assert text.count("Figures are rough") == len(compared.rough)


@many
@given(roofs(), steps())
def test_reconciling_only_raises_the_roof(roof, profile):
    raised, within = reconcile(roof, profile)
    assert not operators_above_roof(raised, within, tolerance=1 + 1e-6)
    assert reconcile(raised, within) == (raised, within)
    for name, table in roof.flops_per_s.items():
        for threads, rate in table.items():
            assert raised.flops(name, int(threads)) >= rate
    for level, table in roof.bandwidth_bytes_per_s.items():
        for threads, rate in table.items():
            assert raised.bandwidth(int(threads), level) >= rate
    if operators_above_roof(roof, profile):
        assert raised.rough
    assert [one.seconds for one in within.operators] == [one.seconds for one in profile.operators]


@many
@given(roofs(), st.integers(1, 200), st.integers(1, 200), st.floats(0, 1e12))
def test_rates_never_decrease_with_threads(roof, some, more, num_bytes):
    some, more = sorted((some, more))
    for dtype in ("float32", "bfloat16", "int8", "float16", "float64", "complex64", "int64", ""):
        assert roof.flops(dtype, some) <= roof.flops(dtype, more)
        assert roof.highest_flops(dtype, some) <= roof.highest_flops(dtype, more)
        assert roof.highest_flops(dtype, some) >= roof.flops(dtype, some)
    assert roof.transfer_seconds(num_bytes, some) >= roof.transfer_seconds(num_bytes, more) * 0.999
    for slower, faster in (("memory", "l3"), ("l3", "l2")):
        assert roof.bandwidth(some, slower) <= roof.bandwidth(some, faster)


def test_rates_between_measured_thread_counts_are_interpolated():
    rates = {"1": 100.0, "8": 640.0}
    roof = ROOF.replace(flops_per_s={"float32": rates, "bfloat16": rates}, cores=8)
    assert [roof.flops("float32", threads) for threads in (1, 4, 6, 7, 8, 16)] == [
        100.0, 400.0, 600.0, 640.0, 640.0, 640.0,
    ]  # fmt: skip


def test_data_that_a_cache_holds_has_the_bandwidth_of_the_cache():
    roof = ROOF.replace(cache_bytes={"l2": 1e6, "l3": 3e7})
    assert roof.level_of(4e6, 4) == "l2"
    assert roof.level_of(2e7, 4) == "l3"
    assert roof.level_of(1e9, 4) == "memory"
    assert 4e6 / roof.transfer_seconds(4e6, 4) == 16e10
    # a cache holds a part of larger data
    assert 4e10 < 1e8 / roof.transfer_seconds(1e8, 4) < 8e10
    assert 4e10 < 1e10 / roof.transfer_seconds(1e10, 4) < 4.1e10
    inside = operator(bytes=1e7, calls=10, seconds=1e7 / 15e10)
    assert not operators_above_roof(roof, seen(inside))
    assert operators_above_roof(roof, seen(inside.replace(calls=1, bytes=1e9, seconds=1e9 / 15e10)))


def test_a_rough_roof_is_raised_and_an_impossible_count_is_dropped():
    fast = operator("mm", seconds=0.01, flops=8e9)  # twice the roof
    raised, within = reconcile(ROOF, seen(fast))
    assert raised.flops("float32", 4) == 8e11
    assert raised.rough == (EXCEEDED,)
    assert within.operators == (fast,)
    for wrong in (operator("mm", seconds=0.01, flops=1e12), operator("theirs", flops=8e9),
                  operator("mm", seconds=0.0, flops=1e9)):  # fmt: skip
        raised, within = reconcile(ROOF, seen(wrong))
        assert raised.flops_per_s == ROOF.flops_per_s
        assert within.operators[0].flops == 0
    # a narrow dtype may be computed in float32
    slow = ROOF.replace(flops_per_s={"float32": {"1": 1e12}, "bfloat16": {"1": 1e10}})
    raised, _ = reconcile(slow, seen(operator("mm", seconds=0.01, flops=1e9, dtype="bfloat16")))
    assert raised.rough == ()
    # and float32 in a narrower dtype, if the script allows it
    fewer = operator("mm", seconds=0.01, flops=8e9, computed_in="bfloat16")
    assert reconcile(ROOF, seen(fewer)) == (ROOF, seen(fewer))


def test_savings_refer_to_an_undisturbed_step():
    """Traced steps are slower: their operator times are scaled."""
    profile = seen(operator("mm", seconds=0.3, flops=3e10, bytes=1e6), step=0.1)
    case = DiagnosedCase(machine=MACHINE, roof=ROOF, seen=profile)
    finding = make_finding(case, 0.15, from_operators=True, cause="code", title="", evidence=(),
                    remedy="", sure=Confidence.CALCULATED)  # fmt: skip
    assert abs(finding.lost_seconds - 0.05) < 1e-9
    assert finding.speedup == 2


def test_no_step_is_shorter_than_its_operations_at_the_roof():
    case = DiagnosedCase(
        machine=MACHINE, roof=ROOF, seen=seen(operator("mm", seconds=0.09, flops=3.2e10))
    )
    about = {
        "cause": "code",
        "title": "",
        "evidence": (),
        "remedy": "",
        "sure": Confidence.CALCULATED,
    }
    assert abs(make_finding(case, 0.09, **about).lost_seconds - 0.02) < 1e-9
    assert abs(make_finding(case, 0.09, exact=False, **about).lost_seconds - 0.08) < 1e-9
    assert make_finding(case, -1.0, **about).speedup == 1


@pytest.mark.parametrize("wrong", [{"lost_seconds": -0.1}, {"speedup": 0.5}])
def test_a_finding_cannot_lose_time(wrong):
    with pytest.raises(ValueError, match="a finding that saves"):
        finding("it loses", **wrong)


@pytest.mark.parametrize(("factor", "is_cached"), [(0.9, False), (1.15, True), (2.0, False)])
def test_a_roof_is_kept_only_if_the_script_is_a_little_faster(monkeypatch, factor, is_cached):
    peak = ROOF.flops_per_s["float32"]["4"]
    profile = seen(operator("convolution", 0.05, flops=factor * peak * 0.05, bytes=1.0))
    kept = []
    monkeypatch.setattr(diagnosis_module, "machine_roof", lambda *_, **__: ROOF)
    monkeypatch.setattr(
        diagnosis_module, "cache_roof", lambda *arguments: kept.append(arguments[-1])
    )
    roof, _ = diagnosis_module.consistent_roof(None, "2", profile, lambda _: None)
    assert bool(kept) == is_cached
    if is_cached:
        assert kept == [roof]
        assert roof.flops_per_s["float32"]["4"] > peak
        assert not roof.rough


def of_all(*findings, roof=ROOF):
    """The speed-up of all remedies of a step of 0.1 s, whose one operator takes 0.02 s at best."""
    peak = roof.flops_per_s["float32"]["4"]
    profile = seen(operator("convolution", 0.1, flops=0.02 * peak, bytes=1.0))
    return Diagnosis(
        script="", when="", cputrain="", box=machine_layout(MACHINE), roof=roof, seen=profile,
        findings=findings, layers=layer_times(profile),
    ).speedup_of_all  # fmt: skip


def test_all_remedies_save_what_each_saves_but_no_step_is_above_the_roof():
    some = finding("some", lost_seconds=0.03, speedup=1 / 0.7)
    assert of_all() == 1.0
    assert of_all(some) == pytest.approx(1 / 0.7)
    assert of_all(some, finding("more", lost_seconds=0.02, speedup=1.25)) == pytest.approx(2)
    most = [finding(str(number), lost_seconds=0.05, speedup=2.0) for number in range(3)]
    assert of_all(*most) == pytest.approx(5)  # 0.02 s at the roof of float32
    bits = finding("bits", lost_seconds=0.05, speedup=2.0, exact=False, changes="fewer bits")
    assert of_all(*most, bits) == pytest.approx(20)  # and a quarter of it in bfloat16
    zeros = finding("zeros", lost_seconds=0.05, speedup=2.0, exact=False, changes="denormals")
    assert of_all(*most, zeros) == pytest.approx(5)

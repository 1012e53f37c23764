"""Findings of each cause, on given step profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from cputrain.diagnose.causes import CAUSES, capacity, code, memory, overlap, units, waiting, work
from cputrain.diagnose.finding import Confidence, DiagnosedCase
from cputrain.diagnose.layers import layer_times
from cputrain.diagnose.remedies import is_triable
from cputrain.diagnose.step_profile import step_profile_of
from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from tests.diagnose.samples import ROOF, operator, seen

MACHINE = read_machine(detail=False)
MACHINES = Path(__file__).parents[1] / "machines"


def findings(cause, profile, **fields):
    case = DiagnosedCase(machine=MACHINE, roof=ROOF, seen=profile, **fields)
    return list(cause.find(case))


def test_a_fast_step_has_no_finding():
    quiet = seen(operator(dtype="bfloat16", flops=1e9, seconds=0.1))
    for cause in CAUSES:
        for finding in findings(cause, quiet):
            assert finding.speedup < 1.05, finding


def test_waiting_with_workers_and_preparing_without_workers():
    waits = seen(wait=0.08, loaders=("_MultiProcessingDataLoaderIter",))
    (finding,) = findings(waiting, waits)
    assert (finding.cause, finding.lost_seconds) == ("input", pytest.approx(0.08))
    assert finding.speedup == pytest.approx(5)
    assert not findings(overlap, waits)
    prepares = seen(wait=0.03, loaders=("_SingleProcessDataLoaderIter",))
    (finding,) = findings(overlap, prepares)
    assert (finding.cause, finding.lost_seconds) == ("overlap", pytest.approx(0.03))
    assert not findings(waiting, prepares)
    (finding,) = findings(
        overlap, prepares.replace(wait=0.08)
    )  # the worker is slower than the training
    assert finding.speedup == pytest.approx(0.1 / 0.08)


def test_memory_that_is_short():
    stalled = seen(counted={"reads": 40.0, "stalled_seconds": 0.06})
    (finding,) = findings(capacity, stalled)
    assert (finding.cause, finding.lost_seconds) == ("capacity", pytest.approx(0.06))
    assert finding.settings == {"memory_limit": "auto"}
    assert "60%" in finding.title
    # other programs' stalls, and pages that are read for the first time
    assert not findings(capacity, seen(counted={"reads": 0.0, "stalled_seconds": 0.06}))
    assert not findings(capacity, seen(counted={"reads": 40.0, "stalled_seconds": 0.0}))


def test_fewer_threads_that_are_faster():
    fewer = seen(operator(seconds=0.02), step=0.025, threads=1)
    (finding,) = findings(work, seen(), fewer=fewer)
    assert (finding.speedup, finding.sure, finding.settings) == (
        pytest.approx(4), Confidence.MEASURED, {"threads": "1"},
    )  # fmt: skip
    assert "mul" in " ".join(finding.evidence)
    assert not findings(work, seen(), fewer=fewer.replace(step=0.2))
    assert not findings(work, seen())
    # a preempted thread makes all other threads wait
    busy = seen(counted={"busy_seconds": 0.35, "user_seconds": 0.2, "system_seconds": 0.0},
                threads=1)  # fmt: skip
    assert busy.other_cpus == pytest.approx(1.5)
    assert not findings(work, busy, fewer=fewer)


def test_unused_bfloat16_units():
    (finding,) = findings(units, seen(operator("mm", flops=4e10, seconds=0.1)))
    assert finding.speedup == pytest.approx(4)
    assert (finding.exact, finding.settings) == (False, {"precision": "bf16"})
    (finding,) = findings(units, seen(operator("mm", flops=4e9, seconds=0.1)))  # not compute-bound
    assert finding.speedup == pytest.approx(1 / (1 - 0.075))
    assert not findings(units, seen(operator("mm", flops=4e10, seconds=0.1, dtype="bfloat16")))


def test_channels_first_images():
    image = {"shapes": ((8, 16, 32, 32), (16, 16, 3, 3)), "dtype": "bfloat16", "bytes": 4e8}
    (finding,) = findings(units, seen(operator("convolution", seconds=0.05, **image)))
    assert finding.lost_seconds == pytest.approx(0.02)
    assert finding.exact
    (finding,) = findings(units, seen(operator("convolution", seconds=0.012, **image)))
    assert finding.lost_seconds == pytest.approx(
        0.012
    )  # reordering takes at most the whole convolution
    assert not findings(units, seen(operator("convolution", channels_last=True, **image)))


def test_misfit_sides_of_matrices():
    head = operator("addmm", seconds=0.06, flops=1e9, shapes=((5000,), (512, 256), (256, 5000)))
    back = operator("mm", seconds=0.02, flops=1e9, shapes=((512, 5000), (5000, 256)))
    fits = operator("mm", seconds=0.02, flops=1e9, shapes=((512, 64), (64, 256)))
    small = operator("mm", seconds=0.02, flops=1e9, shapes=((512, 3), (3, 256)))
    profile = seen(head, back, fits, small, step=0.12)
    odd, odd_back = (512, 5000, 256, "float32"), (512, 256, 5000, "float32")
    round_, round_back = (512, 5056, 256, "float32"), (512, 256, 5056, "float32")
    assert units.products_to_time(profile) == [odd, round_, odd_back, round_back]
    assert units.products_to_time(seen(fits, small)) == []
    times = {odd: 0.03, round_: 0.02, odd_back: 0.01, round_back: 0.02}
    (finding,) = [
        finding for finding in findings(units, profile, products=times) if "sides" in finding.title
    ]
    assert finding.lost_seconds == pytest.approx(0.02)
    assert (finding.sure, finding.exact, finding.settings) == (Confidence.MEASURED, False, None)
    assert "5056 instead of 5000" in finding.remedy
    assert not [finding for finding in findings(units, profile) if "sides" in finding.title]


def test_chains_of_elementwise_operators():
    operators = [
        *(operator(name, bytes=4e8, seconds=0.02, calls=2) for name in ("mul", "add")),
        operator("view", bytes=0.0),
        operator("mm", bytes=2e8, flops=1e9, seconds=0.02),
        operator("mul", bytes=2e8, seconds=0.02, phase="backward"),
    ]
    mul, add, view, mm, back = range(5)

    def find(*order, operators=operators):
        line = tuple((index, 0.01 * at, 0.01) for at, index in enumerate(order))
        return findings(memory, seen(*operators, line=line))

    (finding,) = find(mul, add, view, mul, add)
    assert finding.lost_seconds == pytest.approx(0.03)
    assert "40% of a step" in finding.title
    assert finding.settings == {"compile": "on"}
    (finding,) = find(mul, add, mm, mul, add)  # two chains
    assert finding.lost_seconds == pytest.approx(0.02)
    assert not find(mul, mm, add, mm)
    assert not find(mul, back)  # the loss is between forward and backward
    assert not find(mul, add, operators=[operator.replace(bytes=1e4) for operator in operators])


def test_overheads_of_code():
    plain = {"name": "AdamW", "fused": False, "can_fuse": True, "tensors": 10, "bytes": 4 << 20}
    titles = {
        "not fused": seen(optimizer=0.05, optimizers=(plain,)),
        "page faults": seen(counted={"faults": 50000, "system_seconds": 0.04}),
        "too small": seen(operator(bytes=4e8, seconds=0.1), tiny=0.1),
        "Python": seen(operator(seconds=0.01)),
        "CPU quota": seen(counted={"throttled_seconds": 0.2}),
    }
    for title, profile in titles.items():
        worth = [finding for finding in findings(code, profile) if finding.speedup >= 1.05]
        assert [title in finding.title for finding in worth] == [True], (title, worth)
    both = seen(counted={"faults": 50000, "system_seconds": 0.04, "user_seconds": 0.16})
    (finding,) = [finding for finding in findings(code, both) if "page faults" in finding.title]
    assert finding.lost_seconds == pytest.approx(0.02)  # page faults of two threads overlap
    fused = seen(optimizer=0.05, optimizers=({**plain, "fused": True},))
    assert not [finding for finding in findings(code, fused) if "fused" in finding.title]


def test_denormals_are_reported_and_flushing_is_never_tried():
    """Flushing is not exact: `--apply` does not try it, with lower precision or without."""
    small = seen(operator(bytes=4e8, seconds=0.1), tiny=0.1)
    (finding,) = [finding for finding in findings(code, small) if "too small" in finding.title]
    assert finding.settings == {"flush_denormals": "on"}
    assert (finding.exact, finding.sure) == (False, Confidence.AT_BEST)
    assert "--flush-denormals on" in finding.remedy
    for text in ("below 1.2e-38 become zero", "-inf", "not exact"):
        assert text in finding.remedy
        assert text in finding.changes
    assert not any(is_triable(finding, reduced=reduced) for reduced in (False, True))
    (bits,) = findings(units, seen(operator("mm", flops=4e10, seconds=0.1)))
    assert [is_triable(bits, reduced=reduced) for reduced in (False, True)] == [False, True]
    # on a CPU that is as fast with denormals
    fast = ROOF.replace(denormal_seconds=0.0)
    (finding,) = [
        finding for finding in code.find(DiagnosedCase(machine=MACHINE, roof=fast, seen=small))
        if "too small" in finding.title
    ]  # fmt: skip
    assert finding.speedup == 1


@pytest.mark.parametrize("cause", CAUSES)
def test_an_inexact_remedy_says_what_it_changes(cause):
    profile = seen(
        operator("mm", flops=4e10, seconds=0.09, bytes=1e6, shapes=((500, 33), (33, 70))),
        operator("mul", bytes=4e8, seconds=0.01), tiny=0.1,
    )  # fmt: skip
    times = {(500, 70, 33, "float32"): 0.5, (512, 128, 64, "float32"): 0.1}
    for finding in findings(cause, profile, products=times):
        assert bool(finding.changes) != finding.exact


def test_speedups_are_limited():
    (finding,) = findings(waiting, seen(wait=0.2, loaders=("_MultiProcessingDataLoaderIter",)))
    assert finding.speedup == pytest.approx(1000)


def test_times_of_layers_sum_to_the_step():
    layers = layer_times(seen(
        operator(seconds=0.03), operator("mm", seconds=0.05, phase="backward"),
        operator("add_", seconds=0.01, phase="optimizer", layer=""),
        operator("sum", seconds=0.005, layer=""), wait=0.002,
    ))  # fmt: skip
    assert [layer.kind for layer in layers] == [
        "Linear", "the optimizer", "outside of layers", "between operators", "waiting for data",
    ]  # fmt: skip
    first = layers[0]
    assert (first.count, first.forward, first.backward) == (1, 0.03, 0.05)
    assert first.share == pytest.approx(0.8)
    assert first.most == pytest.approx(5)
    assert layers[-1].cumulated == pytest.approx(1)
    assert sum(layer.seconds for layer in layers) == pytest.approx(0.1)


def test_steps_of_several_optimizers_are_one_training_step():
    each = {"seconds": 0.01, "wait": 0.0, "backward": 0.004, "optimizer": 0.001}
    profile = step_profile_of({
        "steps": [each, {**each, "seconds": 0.03}] * 4 + [each], "traced": 2, "threads": 2,
        "optimizers": [{}, {}], "operators": [], "kinds": {}, "loaders": [], "tiny": 0.0,
        "clocks": [2e9] * 9, "placed": {}, "line": [], "counted": {"faults": 40},
        "tensor_bytes": 100,
    })  # fmt: skip
    assert (profile.step, profile.optimizer, profile.steps) == (
        pytest.approx(0.04), pytest.approx(0.002), 4,
    )  # fmt: skip
    assert profile.counted == {"faults": 10}
    assert profile.tensor_bytes == 50


def test_memory_on_one_numa_node():
    """More cores compute than the node has."""
    machine = read_machine(read_capture(str(MACHINES / "16amd64-8n2c-cpusets.json")))
    nodes = [node for node in machine.nodes if not set(machine.budget.cpus).isdisjoint(node.cpus)]
    assert len(nodes) > 1

    def find(profile):
        case = DiagnosedCase(machine=machine, roof=ROOF, seen=profile)
        return [finding for finding in memory.find(case)
                if finding.settings == {"memory_policy": "interleave"}]  # fmt: skip

    threads = machine.budget.physical_cores
    moving = (operator(seconds=0.06, bytes=1e9), operator(seconds=0.04, flops=1e9))
    (finding,) = find(seen(*moving, threads=threads, placed={"0": 9e9, "1": 1e9}))
    assert finding.lost_seconds == pytest.approx(0.06 * (1 - 1 / (0.9 * len(nodes))))
    assert "90% of the memory is on node 0" in finding.title
    even = {str(node.id): 1e9 for node in nodes}
    assert not [finding for finding in find(seen(*moving, threads=threads, placed=even))
                if finding.speedup > 1.001]  # fmt: skip
    assert not find(seen(*moving, threads=1, placed={"0": 1e9}))
    assert not find(seen(*moving, threads=threads))


def test_thermal_throttling():
    hot = seen(counted={"hot": 3.0}, clock=2e9, highest_clock=4e9)
    (finding,) = [finding for finding in findings(code, hot) if "overheats" in finding.title]
    assert finding.speedup == pytest.approx(2)
    cool = hot.replace(counted={"hot": 0.0})
    assert not [finding for finding in findings(code, cool) if "overheats" in finding.title]

"""What each cause is found in, on figures that are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from cputrain.diagnose.causes import CAUSES, code, memory, overlap, units, waiting, work
from cputrain.diagnose.finding import Confidence, DiagnosedCase
from cputrain.diagnose.layers import layer_times
from cputrain.diagnose.remedies import is_triable
from cputrain.diagnose.step_profile import step_profile_of
from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from tests.diagnose.samples import ROOF, operator, seen

MACHINE = read_machine(detail=False)
MACHINES = Path(__file__).parents[1] / "machines"


def findings(cause, of, **rest):
    return list(cause.find(DiagnosedCase(machine=MACHINE, roof=ROOF, seen=of, **rest)))


def test_nothing_is_found_where_there_is_nothing():
    quiet = seen(operator(dtype="bfloat16", flops=1e9, seconds=0.1))
    for cause in CAUSES:
        for one in findings(cause, quiet):
            assert one.speedup < 1.05, one


def test_waiting_for_workers_and_preparing_without_any():
    waits = seen(wait=0.08, loaders=("_MultiProcessingDataLoaderIter",))
    (one,) = findings(waiting, waits)
    assert (one.cause, one.lost_seconds) == ("input", pytest.approx(0.08))
    assert one.speedup == pytest.approx(5)
    assert not findings(overlap, waits)
    prepares = seen(wait=0.03, loaders=("_SingleProcessDataLoaderIter",))
    (one,) = findings(overlap, prepares)
    assert (one.cause, one.lost_seconds) == ("overlap", pytest.approx(0.03))
    assert not findings(waiting, prepares)
    (one,) = findings(overlap, prepares.replace(wait=0.08))  # then the worker is the slower one
    assert one.speedup == pytest.approx(0.1 / 0.08)


def test_fewer_threads_that_are_faster():
    fewer = seen(operator(seconds=0.02), step=0.025, threads=1)
    (one,) = findings(work, seen(), fewer=fewer)
    assert (one.speedup, one.sure, one.settings) == (
        pytest.approx(4), Confidence.MEASURED, {"threads": "1"},
    )  # fmt: skip
    assert "mul" in " ".join(one.evidence)
    assert not findings(work, seen(), fewer=fewer.replace(step=0.2))
    assert not findings(work, seen())
    # a thread that another program has stopped makes all others wait
    busy = seen(counted={"busy_seconds": 0.35, "user_seconds": 0.2, "system_seconds": 0.0},
                threads=1)  # fmt: skip
    assert busy.other_cpus == pytest.approx(1.5)
    assert not findings(work, busy, fewer=fewer)


def test_units_for_fewer_bits():
    (one,) = findings(units, seen(operator("mm", flops=4e10, seconds=0.1)))
    assert one.speedup == pytest.approx(4)
    assert (one.exact, one.settings) == (False, {"precision": "bf16"})
    (one,) = findings(units, seen(operator("mm", flops=4e9, seconds=0.1)))  # not bound by it
    assert one.speedup == pytest.approx(1 / (1 - 0.075))
    assert not findings(units, seen(operator("mm", flops=4e10, seconds=0.1, dtype="bfloat16")))


def test_images_that_are_turned():
    image = {"shapes": ((8, 16, 32, 32), (16, 16, 3, 3)), "dtype": "bfloat16", "bytes": 4e8}
    (one,) = findings(units, seen(operator("convolution", seconds=0.05, **image)))
    assert one.lost_seconds == pytest.approx(0.02)
    assert one.exact
    (one,) = findings(units, seen(operator("convolution", seconds=0.012, **image)))
    assert one.lost_seconds == pytest.approx(0.012)  # turning takes no more than the whole of it
    assert not findings(units, seen(operator("convolution", channels_last=True, **image)))


def test_sides_that_do_not_fit():
    head = operator("addmm", seconds=0.06, flops=1e9, shapes=((5000,), (512, 256), (256, 5000)))
    back = operator("mm", seconds=0.02, flops=1e9, shapes=((512, 5000), (5000, 256)))
    fits = operator("mm", seconds=0.02, flops=1e9, shapes=((512, 64), (64, 256)))
    small = operator("mm", seconds=0.02, flops=1e9, shapes=((512, 3), (3, 256)))
    of = seen(head, back, fits, small, step=0.12)
    odd, odd_back = (512, 5000, 256, "float32"), (512, 256, 5000, "float32")
    round_, round_back = (512, 5056, 256, "float32"), (512, 256, 5056, "float32")
    assert units.products_to_time(of) == [odd, round_, odd_back, round_back]
    assert units.products_to_time(seen(fits, small)) == []
    times = {odd: 0.03, round_: 0.02, odd_back: 0.01, round_back: 0.02}
    (one,) = [each for each in findings(units, of, products=times) if "sides" in each.title]
    assert one.lost_seconds == pytest.approx(0.02)
    assert (one.sure, one.exact, one.settings) == (Confidence.MEASURED, False, None)
    assert "5056 instead of 5000" in one.remedy
    assert not [each for each in findings(units, of) if "sides" in each.title]


def test_chains_that_go_to_memory():
    operators = [
        *(operator(name, bytes=4e8, seconds=0.02, calls=2) for name in ("mul", "add")),
        operator("view", bytes=0.0),
        operator("mm", bytes=2e8, flops=1e9, seconds=0.02),
        operator("mul", bytes=2e8, seconds=0.02, phase="backward"),
    ]
    mul, add, view, mm, back = range(5)

    def told(*order, of=operators):
        line = tuple((which, 0.01 * at, 0.01) for at, which in enumerate(order))
        return findings(memory, seen(*of, line=line))

    (one,) = told(mul, add, view, mul, add)
    assert one.lost_seconds == pytest.approx(0.03)
    assert "40% of a step" in one.title
    assert one.settings == {"compile": "on"}
    (one,) = told(mul, add, mm, mul, add)  # two chains
    assert one.lost_seconds == pytest.approx(0.02)
    assert not told(mul, mm, add, mm)
    assert not told(mul, back)  # that which comes between is the loss
    assert not told(mul, add, of=[one.replace(bytes=1e4) for one in operators])


def test_code_that_takes_time():
    plain = {"name": "AdamW", "fused": False, "can_fuse": True, "tensors": 10, "bytes": 4 << 20}
    titles = {
        "not fused": seen(optimizer=0.05, optimizers=(plain,)),
        "page faults": seen(counted={"faults": 50000, "system_seconds": 0.04}),
        "too small": seen(operator(bytes=4e8, seconds=0.1), tiny=0.1),
        "Python": seen(operator(seconds=0.01)),
        "CPU quota": seen(counted={"throttled_seconds": 0.2}),
    }
    for title, of in titles.items():
        worth = [one for one in findings(code, of) if one.speedup >= 1.05]
        assert [title in one.title for one in worth] == [True], (title, worth)
    both = seen(counted={"faults": 50000, "system_seconds": 0.04, "user_seconds": 0.16})
    (one,) = [one for one in findings(code, both) if "page faults" in one.title]
    assert one.lost_seconds == pytest.approx(0.02)  # two threads wait side by side
    fused = seen(optimizer=0.05, optimizers=({**plain, "fused": True},))
    assert not [one for one in findings(code, fused) if "fused" in one.title]


def test_denormals_are_named_and_never_flushed_without_being_asked_for():
    """It is not exact: no option of `--apply`, fewer bits allowed or not, tries it."""
    small = seen(operator(bytes=4e8, seconds=0.1), tiny=0.1)
    (one,) = [one for one in findings(code, small) if "too small" in one.title]
    assert one.settings == {"flush_denormals": "on"}
    assert (one.exact, one.sure) == (False, Confidence.AT_BEST)
    assert "--flush-denormals on" in one.remedy
    for said in ("below 1.2e-38 become zero", "-inf", "not exact"):
        assert said in one.remedy
        assert said in one.changes
    assert not any(is_triable(one, reduced=reduced) for reduced in (False, True))
    (bits,) = findings(units, seen(operator("mm", flops=4e10, seconds=0.1)))
    assert [is_triable(bits, reduced=reduced) for reduced in (False, True)] == [False, True]
    # on a CPU that is as fast with them, they cost nothing
    fast = ROOF.replace(denormal_seconds=0.0)
    (one,) = [
        one for one in code.find(DiagnosedCase(machine=MACHINE, roof=fast, seen=small))
        if "too small" in one.title
    ]  # fmt: skip
    assert one.speedup == 1


@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_not_exact_says_what_it_changes(cause):
    of = seen(
        operator("mm", flops=4e10, seconds=0.09, bytes=1e6, shapes=((500, 33), (33, 70))),
        operator("mul", bytes=4e8, seconds=0.01), tiny=0.1,
    )  # fmt: skip
    times = {(500, 70, 33, "float32"): 0.5, (512, 128, 64, "float32"): 0.1}
    for one in findings(cause, of, products=times):
        assert bool(one.changes) != one.exact


def test_no_gain_is_without_end():
    (one,) = findings(waiting, seen(wait=0.2, loaders=("_MultiProcessingDataLoaderIter",)))
    assert one.speedup == pytest.approx(1000)


def test_layers_are_those_of_a_step():
    found = layer_times(seen(
        operator(seconds=0.03), operator("mm", seconds=0.05, phase="backward"),
        operator("add_", seconds=0.01, phase="optimizer", layer=""),
        operator("sum", seconds=0.005, layer=""), wait=0.002,
    ))  # fmt: skip
    assert [one.kind for one in found] == [
        "Linear", "the optimizer", "outside of layers", "between operators", "waiting for data",
    ]  # fmt: skip
    first = found[0]
    assert (first.count, first.forward, first.backward) == (1, 0.03, 0.05)
    assert first.share == pytest.approx(0.8)
    assert first.most == pytest.approx(5)
    assert found[-1].cumulated == pytest.approx(1)
    assert sum(one.seconds for one in found) == pytest.approx(0.1)


def test_several_optimizers_make_one_step():
    each = {"seconds": 0.01, "wait": 0.0, "backward": 0.004, "optimizer": 0.001}
    found = step_profile_of({
        "steps": [each, {**each, "seconds": 0.03}] * 4 + [each], "traced": 2, "threads": 2,
        "optimizers": [{}, {}], "operators": [], "kinds": {}, "loaders": [], "tiny": 0.0,
        "clocks": [2e9] * 9, "placed": {}, "line": [], "counted": {"faults": 40},
    })  # fmt: skip
    assert (found.step, found.optimizer, found.steps) == (
        pytest.approx(0.04), pytest.approx(0.002), 4,
    )  # fmt: skip
    assert found.counted == {"faults": 10}


def test_memory_that_is_all_on_one_node():
    """Where more cores compute than are beside it."""
    machine = read_machine(read_capture(str(MACHINES / "16amd64-8n2c-cpusets.json")))
    nodes = [one for one in machine.nodes if not set(machine.budget.cpus).isdisjoint(one.cpus)]
    assert len(nodes) > 1

    def told(of):
        return [one for one in memory.find(DiagnosedCase(machine=machine, roof=ROOF, seen=of))
                if one.settings == {"memory_policy": "interleave"}]  # fmt: skip

    threads = machine.budget.physical_cores
    moving = (operator(seconds=0.06, bytes=1e9), operator(seconds=0.04, flops=1e9))
    (one,) = told(seen(*moving, threads=threads, placed={"0": 9e9, "1": 1e9}))
    assert one.lost_seconds == pytest.approx(0.06 * (1 - 1 / (0.9 * len(nodes))))
    assert "90% of the memory is on node 0" in one.title
    even = {str(node.id): 1e9 for node in nodes}
    assert not [one for one in told(seen(*moving, threads=threads, placed=even))
                if one.speedup > 1.001]  # fmt: skip
    assert not told(seen(*moving, threads=1, placed={"0": 1e9}))
    assert not told(seen(*moving, threads=threads))


def test_a_cpu_that_becomes_too_hot():
    hot = seen(counted={"hot": 3.0}, clock=2e9, highest_clock=4e9)
    (one,) = [one for one in findings(code, hot) if "overheats" in one.title]
    assert one.speedup == pytest.approx(2)
    cool = hot.replace(counted={"hot": 0.0})
    assert not [one for one in findings(code, cool) if "overheats" in one.title]

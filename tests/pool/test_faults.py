"""Whatever ends, raises or is missing: a pool tells it soon, goes on, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import random
import re
import signal
import sys
import threading
import time
from functools import partial
from multiprocessing import resource_sharer
from multiprocessing.pool import MaybeEncodingError, RemoteTraceback
from pathlib import Path
from typing import Any

import pytest
import torch

from cputrain import Pool
from cputrain.errors import CputrainError, TaskError, TaskLost, TaskTimeout, WorkerDied
from cputrain.machine import read_machine
from tests.left_behind import children
from tests.pool import functions as f
from tests.pool.functions import METHODS, gone, in_session, runs, until
from tests.pool.scripts import ended, started, with_small_dev_shm
from tests.selected import cases

pytestmark = pytest.mark.usefixtures("nothing_left")


def assert_says_all(error: BaseException) -> None:
    """Fails unless a message has its four parts."""
    assert isinstance(error, CputrainError)
    assert error.parameter
    assert error.rule
    assert error.found
    assert error.do
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# workers that end

ENDS = {
    "SIGKILL": "was killed by SIGKILL",
    "SIGTERM": "was killed by SIGTERM",
    "_exit": "ended with exit code 3",
    "segfault": "was killed by SIGSEGV",
    "abort": "was killed by SIGABRT",
}


@pytest.mark.parametrize("way", cases(ENDS, ["SIGKILL", "segfault"]))
def test_a_worker_that_ends_in_a_task_is_told_with_the_task_and_the_pool_lives_on(way: str) -> None:
    with Pool(2, context="fork") as pool:
        begin = time.monotonic()
        with pytest.raises(WorkerDied, match=ENDS[way]) as raised:
            pool.map(partial(f.end_at, 5, way), range(12), chunksize=1)
        assert time.monotonic() - begin < 20
        assert "item 5 of map(end_at)" in str(raised.value)
        assert_says_all(raised.value)
        assert pool.map(f.double, range(50)) == list(range(0, 100, 2))
        assert len({worker.pid for worker in pool._pool}) == 2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_ends_is_told_however_it_was_started(method: str) -> None:
    with Pool(1, context=method) as pool:
        for way in ("SIGKILL", "segfault") if method == "spawn" else ENDS:
            with pytest.raises(WorkerDied, match=rf"apply\(end\) .*{ENDS[way]}"):
                pool.apply(f.end, (way,))
            assert pool.apply(f.double, (4,)) == 8


def test_the_item_that_is_named_is_the_one_in_its_chunk_if_a_timeout_is_set() -> None:
    with (
        Pool(1) as pool,
        pytest.raises(WorkerDied, match=r"item 7 of map"),
    ):
        pool.map(partial(f.end_at, 7, "SIGKILL"), range(12), chunksize=5, timeout=50)


def test_a_worker_that_is_lost_costs_imap_only_its_own_item() -> None:
    with Pool(2) as pool:
        results = pool.imap(partial(f.end_at, 5, "SIGKILL"), range(30))
        assert [next(results) for _ in range(5)] == [0, 10, 20, 30, 40]
        with pytest.raises(WorkerDied, match=r"item 5 of imap\(end_at\)"):
            next(results)
        assert list(results) == list(range(60, 300, 10))


@pytest.mark.parametrize("method", METHODS)
def test_an_idle_worker_that_is_killed_is_replaced_and_nothing_is_lost(method: str) -> None:
    with Pool(2, context=method) as pool:
        assert pool.map(f.double, range(10)) == list(range(0, 20, 2))
        for _ in range(2 if method == "spawn" else 5):
            before = {worker.pid for worker in pool._pool}
            os.kill(min(before), signal.SIGKILL)
            assert pool.map(f.double, range(40), chunksize=1) == list(range(0, 80, 2))
            until(lambda before=before: len({w.pid for w in pool._pool} - {min(before)}) == 2)


def test_all_idle_workers_can_be_killed_at_once() -> None:
    with Pool(3) as pool:
        pool.map(f.double, range(10))
        for _ in range(5):
            for worker in list(pool._pool):
                with contextlib.suppress(ProcessLookupError):  # it has not been replaced yet
                    os.kill(worker.pid, signal.SIGKILL)
            assert pool.map(f.double, range(40), chunksize=1) == list(range(0, 80, 2))


def test_workers_that_are_killed_while_they_start_are_replaced_if_another_is_ready(
    tmp_path: Path,
) -> None:
    with Pool(4, initializer=partial(f.first_or_wait, tmp_path)) as pool:
        ready = pool.apply(os.getpid)
        until(lambda: all(worker.pid for worker in pool._pool))
        starting = {worker.pid for worker in pool._pool} - {ready}
        for pid in starting:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not starting & {worker.pid for worker in pool._pool})
        (tmp_path / "go").mkdir()
        assert pool.map(f.double, range(40), chunksize=1) == list(range(0, 80, 2))


@pytest.mark.parametrize("how", ["terminate", "close"])
def test_a_pool_ends_though_workers_were_asked_of_a_process_that_was_killed(how: str) -> None:
    pool = Pool(2, context="fork")
    pool.map(f.double, range(10))
    starter = f.parent_of(pool._pool[1].pid)
    assert starter != os.getpid()
    os.kill(starter, signal.SIGSTOP)
    first = pool._pool[0]
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: len(pool._pool) == 2 and first not in pool._pool)
    getattr(pool, how)()
    with contextlib.suppress(ProcessLookupError):  # terminate() has seen to it
        os.kill(starter, signal.SIGKILL)
    begin = time.monotonic()
    pool.join()
    assert time.monotonic() - begin < 10


def test_a_pool_survives_or_tells_the_loss_of_the_process_that_starts_its_workers() -> None:
    with Pool(2, context="fork") as pool:
        pool.map(f.double, range(10))
        starter = f.parent_of(pool._pool[0].pid)
        if starter != os.getpid():
            os.kill(starter, signal.SIGKILL)
        for _ in range(3):
            try:
                assert pool.map_async(f.double, range(40)).get(15) == list(range(0, 80, 2))
                os.kill(pool._pool[0].pid, signal.SIGKILL)
            except (CputrainError, IndexError, ProcessLookupError):
                continue
        begin = time.monotonic()
        pool.close()
        pool.join()
        assert time.monotonic() - begin < 20


def test_a_task_whose_worker_died_is_run_again_as_often_as_asked(tmp_path: Path) -> None:
    with Pool(2) as pool:
        once = partial(f.killed_once, str(tmp_path / "mark"))
        assert pool.map(once, range(8), retries=1) == list(range(8))
    folder = tmp_path / "deaths"
    folder.mkdir()
    with Pool(2, retries=2) as pool:
        with pytest.raises(WorkerDied, match=r"lost its worker 3 times"):
            pool.apply(f.counted_death, (str(folder),))
        assert len(list(folder.iterdir())) == 3
        with pytest.raises(WorkerDied, match=r"lost its worker; found"):
            pool.apply(f.counted_death, (str(folder),), retries=0)
        assert len(list(folder.iterdir())) == 4


def test_an_exception_is_not_tried_again(tmp_path: Path) -> None:
    with Pool(1, retries=5) as pool:
        with pytest.raises(LookupError):
            pool.apply(f.noisy_initializer, (str(tmp_path),))
        assert len(list(tmp_path.iterdir())) == 1
        pids = pool.map(f.pid, range(3))
        assert len(set(pids)) == 1


@pytest.mark.parametrize("chunksize", [1, 7])
def test_twenty_workers_killed_at_random_moments_cost_no_result(chunksize: int) -> None:
    generator = random.Random(chunksize)
    with Pool(3, context="fork", retries=60) as pool:
        result = pool.map_async(f.slow_pair, range(1000), chunksize=chunksize)
        for _ in range(20):
            # where the machine is slow, all would be killed while they start, which is told
            left, end = result._number_left, time.monotonic() + 30
            while (
                (result._number_left == left or pool._engine.supervisor._failed_starts)
                and not result.ready()
                and time.monotonic() < end
            ):
                time.sleep(0.001)
            time.sleep(generator.uniform(0, 0.05))
            with contextlib.suppress(IndexError, ProcessLookupError):
                os.kill(generator.choice(pool._pool).pid, signal.SIGKILL)
        for number, (item, tensor) in enumerate(result.get()):
            assert item == number
            assert torch.equal(tensor, torch.full((4000,), number))
        assert pool.map(f.double, range(20)) == list(range(0, 40, 2))


def test_workers_killed_while_imap_is_consumed_cost_no_result() -> None:
    generator = random.Random(3)
    with Pool(2, context="fork", retries=60) as pool:
        for number, (item, tensor) in enumerate(pool.imap(f.slow_pair, iter(range(400)))):
            assert item == number
            assert torch.equal(tensor, torch.full((4000,), number))
            if number % 20 == 0:
                with contextlib.suppress(IndexError, ProcessLookupError):
                    os.kill(generator.choice(pool._pool).pid, signal.SIGKILL)


# the main thread is at work while workers are replaced: nothing of it may be inherited half done

BUSY = {
    "prints": "print('y' * 200)",
    "draws": "(torch.rand(200, 200) @ torch.rand(200, 200)).sum()",
    "imports": "sys.modules.pop('colorsys', None); import colorsys",
    "logs": "logging.info('y' * 100)",
    "goes back": "torch.rand(100, requires_grad=True).sum().backward()",
}


@pytest.mark.parametrize("name", cases(BUSY, ["goes back"]))
@pytest.mark.long
def test_workers_are_replaced_while_the_script(name: str, tmp_path: Path) -> None:
    text = f"""
import logging
def task(item):
    sys.modules.pop("colorsys", None)
    import colorsys
    return item, torch.rand(3).sum() >= 0
if __name__ == "__main__":
    logging.basicConfig(stream=open("/dev/null", "w"), level=0)
    sys.stdout = open("/dev/null", "w")
    with Pool(2, maxtasksperchild=2) as pool:
        result = pool.map_async(task, range(200), chunksize=1)
        end = time.monotonic() + 50
        while not result.ready() and time.monotonic() < end:
            for _ in range(50):
                {BUSY[name]}
            time.sleep(0.001)  # Python hardly lets another thread in while a script prints
        assert result.ready(), "it hangs"
        assert [item for item, _ in result.get()] == list(range(200))
"""
    code, _, err = ended(tmp_path, text)
    assert code == 0, err


# time


def test_a_task_that_takes_too_long_is_killed_and_no_other_is() -> None:
    with Pool(2) as pool:
        results = pool.imap_unordered(f.nap, [0.01, 60, 0.02, 0.03], timeout=1)
        assert sorted(next(results) for _ in range(3)) == [0.01, 0.02, 0.03]
        begin = time.monotonic()
        with pytest.raises(TaskTimeout, match=r"item 1 of imap_unordered\(nap\) .*1 s") as raised:
            next(results)
        assert time.monotonic() - begin < 20
        assert isinstance(raised.value, TimeoutError)
        assert isinstance(raised.value, TaskLost)
        assert_says_all(raised.value)
        assert list(results) == []
        assert pool.map(f.double, range(9)) == list(range(0, 18, 2))


def test_a_timeout_is_for_each_item_of_a_chunk() -> None:
    with Pool(1, timeout=1) as pool:
        assert pool.map(f.nap, [0.3] * 6, chunksize=6) == [0.3] * 6
        with pytest.raises(TaskTimeout, match=r"item 2 of map\(nap\)"):
            pool.map(f.nap, [0.1, 0.1, 60, 0.1], chunksize=4)
        assert pool.apply(f.nap, (1.5,), timeout=30) == 1.5


def test_a_timeout_ends_native_code_and_what_ignores_signals() -> None:
    with Pool(1, timeout=0.5) as pool:
        with pytest.raises(TaskTimeout, match=r"apply\(deaf_to_sigterm\)"):
            pool.apply(f.deaf_to_sigterm)
        assert pool.apply(f.double, (1,)) == 2


def test_a_task_that_was_killed_for_its_time_is_tried_again_as_often_as_asked() -> None:
    with Pool(1) as pool:
        begin = time.monotonic()
        with pytest.raises(TaskTimeout, match="3 times"):
            pool.apply(f.nap, (60,), timeout=0.3, retries=2)
        assert 0.9 <= time.monotonic() - begin < 20


@pytest.mark.parametrize("seconds", [float("inf"), threading.TIMEOUT_MAX, 3e6])
def test_a_timeout_may_be_as_long_as_one_likes(seconds: float) -> None:
    with Pool(1, timeout=seconds) as pool:
        assert pool.map_async(f.double, range(5)).get(10) == [0, 2, 4, 6, 8]


# starts


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_initializer_that_raises_is_told_with_its_traceback_and_not_tried_for_ever(
    tmp_path: Path, method: str
) -> None:
    with Pool(2, f.noisy_initializer, (str(tmp_path),), context=method) as pool:
        with pytest.raises(TaskLost, match=r"initializer .*LookupError: no such data") as raised:
            pool.map(f.double, range(10))
        assert_says_all(raised.value)
        cause = raised.value.__cause__
        assert isinstance(cause, LookupError)
        assert "noisy_initializer" in str(cause.__cause__)
        with pytest.raises(TaskLost):
            pool.apply(f.double, (1,))
        with pytest.raises(TaskLost):
            list(pool.imap(f.double, range(3)))
        time.sleep(0.3)
        assert len(list(tmp_path.iterdir())) <= 4
        begin = time.monotonic()
        pool.close()
        pool.join()
        assert time.monotonic() - begin < 20


def test_a_pool_that_cannot_work_ends_the_results_of_an_endless_iterator(
    tmp_path: Path, nothing_left: None
) -> None:
    with Pool(2, f.noisy_initializer, (str(tmp_path),)) as pool:
        results = pool.imap(f.same, itertools.count())
        with pytest.raises(TaskLost, match="no such data"):
            for _ in results:
                pass


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_initializer_that_ends_its_process_is_told_and_not_tried_for_ever(
    tmp_path: Path, method: str
) -> None:
    with Pool(2, f.counted_death, (str(tmp_path),), context=method) as pool:
        with pytest.raises(WorkerDied, match=r"before it was ready.*SIGKILL"):
            pool.map(f.double, range(10))
        time.sleep(0.3)
        assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.long
def test_a_script_without_a_main_guard_ends_with_an_error_under_spawn(tmp_path: Path) -> None:
    text = """
pool = Pool(1, context="spawn")
try:
    pool.map(f.double, range(5))
finally:
    pool.terminate()
"""
    code, _, err = ended(tmp_path, text)
    assert code == 1
    assert "WorkerDied: a pool's worker ended before it was ready" in err
    assert '`if __name__ == "__main__":`' in err


@pytest.mark.long
def test_a_module_that_fails_in_the_worker_ends_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text(
        "import os\n"
        "if os.getpid() != int(os.environ['HERE']):\n"
        "    raise RuntimeError('not to be imported')\n"
        "def g(x): return x\n"
    )
    text = """
if __name__ == "__main__":
    os.environ["HERE"] = str(os.getpid())
    import only_here
    with Pool(1, context="spawn") as pool:
        try:
            pool.map(only_here.g, range(5))
        except RuntimeError as error:
            print(error)
        print(pool.map(f.double, range(3)))
"""
    code, out, err = ended(tmp_path, text)
    assert code == 0, err
    assert out.splitlines() == ["not to be imported", "[0, 2, 4]"]


def test_a_function_that_a_worker_does_not_find_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_later(x: int) -> int:
        return x

    made_later.__module__, made_later.__qualname__ = f.__name__, "made_later"
    with Pool(1, context="fork") as pool:
        monkeypatch.setattr(f, "made_later", made_later, raising=False)
        with pytest.raises(AttributeError, match="made_later"):
            pool.apply(made_later, (1,))
        with pytest.raises(AttributeError, match="made_later"):
            pool.map(made_later, range(3))
        assert pool.apply(f.double, (1,)) == 2


# what cannot be sent


@pytest.mark.parametrize("unsendable", [f.Unsendable(), lambda: None, threading.Lock()])
def test_arguments_that_cannot_be_pickled_are_told_at_once(unsendable: Any) -> None:
    with Pool(1) as pool:
        for call in (
            partial(pool.apply, f.double, (unsendable,)),
            partial(pool.map, f.double, [1, unsendable, 2], 1),
            lambda: list(pool.imap(f.double, [unsendable])),
            partial(pool.starmap, f.add, [(1, unsendable)]),
        ):
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
                call()
        if not isinstance(unsendable, f.Unsendable):
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
                pool.map(lambda _: unsendable, range(3))
        assert pool.map(f.double, range(9)) == list(range(0, 18, 2))


@pytest.mark.parametrize("kind", ["function", "generator", "undescribed", "deep"])
def test_a_result_that_cannot_be_pickled_is_told_and_its_worker_goes_on(kind: str) -> None:
    with Pool(1) as pool:
        before = pool.apply(f.pid)
        with pytest.raises(MaybeEncodingError):
            pool.apply(f.unsendable, (kind,))
        assert pool.apply(f.pid) == before


@pytest.mark.parametrize("kind", ["raises", "exits"])
def test_a_result_that_cannot_be_made_here_is_told_and_the_pool_lives_on(kind: str) -> None:
    with Pool(1) as pool:
        result = pool.apply_async(f.bomb, (kind,))
        with pytest.raises(TaskError, match=r"ArithmeticError: boom|SystemExit: 3") as raised:
            result.get(10)
        assert raised.value.found
        assert pool.apply_async(f.double, (1,)).get(10) == 2


# exceptions

RAISED: dict[str, tuple[type[BaseException], str]] = {
    "plain": (ArithmeticError, "plain words"),
    "own arguments": (TaskError, "LocalError.*found 1 and 2"),
    "hidden": (TaskError, "HiddenError.*cannot be pickled.*nobody else knows this class"),
    "lock": (TaskError, "ValueError.*cannot be pickled"),
    "speechless": (f.SpeechlessError, ""),
    "deadly": (TaskError, "DeadlyError.*all over"),
    "KeyboardInterrupt": (TaskError, "KeyboardInterrupt.*keys"),
    "SystemExit": (TaskError, "SystemExit.*3"),
    "GeneratorExit": (TaskError, "GeneratorExit.*gen"),
    "StopIteration": (StopIteration, "stop"),
    "tensor": (ValueError, "tensor"),
}


@pytest.mark.parametrize("kind", RAISED)
def test_whatever_a_task_raises_is_told_with_its_traceback(kind: str) -> None:
    expected, text = RAISED[kind]
    with Pool(1, context="fork") as pool:
        before = pool.apply(f.pid)
        with pytest.raises(expected) as raised:
            pool.apply(f.raises, (kind,))
        if kind != "speechless":
            assert re.search(text, str(raised.value), re.DOTALL)
        assert isinstance(raised.value.__cause__, RemoteTraceback)
        remote = str(raised.value.__cause__)
        assert "Traceback (most recent call last)" in remote
        assert "in raises" in remote
        assert "worker.py" not in remote
        assert pool.apply(f.pid) == before


def test_a_task_that_exits_does_not_end_its_worker() -> None:
    with Pool(1) as pool:
        before = pool.apply(f.pid)
        with pytest.raises(TaskError, match=r"SystemExit.*found 3"):
            pool.apply(f.leaves, (3,))
        assert pool.apply(f.pid) == before


def test_an_error_in_one_item_of_imap_does_not_end_it() -> None:
    with Pool(2) as pool:
        results = pool.imap(f.raises, ["plain", "tensor", "SystemExit"])
        for kind in (ArithmeticError, ValueError, TaskError):
            with pytest.raises(kind):
                next(results)
        with pytest.raises(StopIteration):
            next(results)


# callbacks


def test_a_callback_that_raises_is_told_and_the_result_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fails(_: object) -> None:
        raise LookupError("in a callback")

    with Pool(1) as pool:
        assert pool.apply_async(f.double, (2,), callback=fails).get(10) == 4
        assert pool.map_async(f.double, [1, 2], callback=fails).get(10) == [2, 4]
        result = pool.apply_async(f.raises, ("plain",), error_callback=fails)
        with pytest.raises(ArithmeticError):
            result.get(10)
    assert [one.exc_type for one in told] == [LookupError] * 3


def test_a_callback_that_exits_does_not_stall_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def leaves(_: object) -> None:
        sys.exit(1)

    with Pool(1) as pool:
        assert pool.apply_async(f.double, (2,), callback=leaves).get(10) == 4
        assert pool.apply_async(f.double, (3,), callback=lambda _: None).get(10) == 6
        pool.close()
        pool.join()


def test_a_callback_may_use_the_pool_and_wait_for_it() -> None:
    with Pool(1) as pool:
        found: list[int] = []
        result = pool.apply_async(
            f.double, (2,), callback=lambda four: found.append(pool.apply(f.double, (four,)))
        )
        assert result.get(10) == 4
        until(lambda: found == [8])


def test_a_callback_that_takes_long_does_not_stall_other_calls() -> None:
    go = threading.Event()
    with Pool(1) as pool:
        result = pool.apply_async(f.double, (2,), callback=lambda _: go.wait(20))
        assert pool.map(f.double, range(20)) == list(range(0, 40, 2))
        go.set()
        assert result.get(10) == 4


def test_callbacks_have_been_called_once_a_closed_pool_is_joined() -> None:
    found: list[int] = []
    pool = Pool(2)
    for number in range(100):
        pool.apply_async(f.double, (number,), callback=found.append)
    pool.close()
    pool.join()
    assert sorted(found) == list(range(0, 200, 2))


# the end


def test_who_waits_for_a_pool_that_is_terminated_is_told() -> None:
    pool = Pool(1)
    kinds = [
        pool.apply_async(f.nap, (60,)),
        pool.map_async(f.nap, [60, 60]),
        pool.starmap_async(f.add, [(1, 2)]),
    ]
    lazy = pool.imap(f.nap, [60, 60])
    unordered = pool.imap_unordered(f.nap, iter([60, 60]))
    time.sleep(0.2)
    begin = time.monotonic()
    pool.terminate()
    pool.join()
    assert time.monotonic() - begin < 20
    for result in kinds:
        with pytest.raises(TaskLost, match="terminated") as raised:
            result.get(5)
        assert_says_all(raised.value)
    for iterator in (lazy, unordered):
        with pytest.raises(TaskLost, match="terminated"):
            iterator.next(5)


def test_a_thread_that_waits_is_told_as_the_pool_is_terminated() -> None:
    found: list[BaseException] = []

    def wait(pool: Pool) -> None:
        try:
            pool.map(f.nap, [60, 60])
        except TaskLost as error:
            found.append(error)

    pool = Pool(1)
    thread = threading.Thread(target=wait, args=(pool,))
    thread.start()
    time.sleep(0.2)
    pool.terminate()
    thread.join(5)
    assert len(found) == 1


def test_a_worker_that_ignores_sigterm_is_ended_all_the_same() -> None:
    pool = Pool(2)
    pool.map_async(f.deaf_to_sigterm, range(2), chunksize=1)
    time.sleep(0.3)
    pids = [worker.pid for worker in pool._pool]
    begin = time.monotonic()
    pool.terminate()
    pool.join()
    assert time.monotonic() - begin < 20
    assert not any(map(runs, pids))


def test_a_pool_in_a_cycle_is_collected_without_its_workers_being_left() -> None:
    pool: Any = Pool(2)
    pids = [worker.pid for worker in pool._pool]
    pool.cycle = pool
    with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):  # noqa: PT031
        del pool
        gc.collect()
    until(lambda: not any(map(runs, pids)))


# scripts: what happens to the whole of their processes

WAITS = {
    "map": "pool.map(f.nap, [60] * 4)",
    "imap": "list(pool.imap(f.nap, f.endless()))",
    "apply": "pool.apply(f.nap, (60,))",
    "idle": "time.sleep(60)",
    "retrying": "pool.map(f.nap, [60] * 4, retries=5, timeout=50)",
    "join": "pool.map_async(f.nap, [60] * 4); pool.close(); pool.join()",
}

INTERRUPTED = """
if __name__ == "__main__":
    {begin}
        pool.map(f.double, range(4))
        print("ready", flush=True)
        {wait}
"""


@pytest.mark.parametrize("begin", ["with Pool(2) as pool:", "pool = Pool(2)\n    if True:"])
@pytest.mark.parametrize("wait", WAITS)
def test_one_interrupt_is_enough(tmp_path: Path, begin: str, wait: str) -> None:
    _interrupted(tmp_path, INTERRUPTED.format(begin=begin, wait=WAITS[wait]))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_one_interrupt_is_enough_however_workers_were_started(tmp_path: Path, method: str) -> None:
    begin = f'with Pool(2, context="{method}") as pool:'
    _interrupted(tmp_path, INTERRUPTED.format(begin=begin, wait=WAITS["map"]))


def _interrupted(folder: Path, text: str) -> None:
    process = started(folder, text)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)  # until it waits, and so do its workers
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - begin < 20
    assert gone(process.pid, 2)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "resource_tracker" not in err


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_interrupt_while_workers_start_is_told_once(tmp_path: Path, method: str) -> None:
    text = f"""
if __name__ == "__mp_main__":
    print("starting", flush=True)
    time.sleep(2)
if __name__ == "__main__":
    with Pool(2, context="{method}") as pool:
        pool.map(f.nap, [60] * 4)
"""
    process = started(tmp_path, text)
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert gone(process.pid, 3)
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1, err


def test_an_interrupt_while_workers_are_replaced_all_the_time_is_told_once(tmp_path: Path) -> None:
    text = INTERRUPTED.format(
        begin="with Pool(2, maxtasksperchild=1) as pool:",
        wait="for _ in pool.imap(f.double, f.endless()): pass",
    )
    for _ in range(3):
        _interrupted(tmp_path, text)


@pytest.mark.parametrize("method", METHODS)
def test_workers_end_with_a_process_that_is_killed(tmp_path: Path, method: str) -> None:
    text = f"""
if __name__ == "__main__":
    pool = Pool(2, context="{method}")
    pool.map(f.double, range(4))
    pool.map_async(f.deaf_to_sigterm, range(1), chunksize=1)
    print(*(worker.pid for worker in pool._pool), flush=True)
    time.sleep(60)
"""
    process = started(tmp_path, text)
    assert process.stdout is not None
    pids = [int(one) for one in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(runs, pids))
    time.sleep(0.2)
    process.kill()
    process.communicate(timeout=20)
    assert gone(process.pid, 3), in_session(process.pid)
    named = [str(one) for one in (*pids, process.pid)]
    assert not [name for name in os.listdir("/dev/shm") if any(one in name for one in named)]


def test_workers_of_workers_end_with_the_process_that_is_killed(tmp_path: Path) -> None:
    text = """
def inner(_):
    pool = Pool(2, context="fork")
    pool.map_async(f.nap, [60] * 4)
    print("pids", os.getpid(), *(worker.pid for worker in pool._pool), flush=True)
    time.sleep(60)
if __name__ == "__main__":
    pool = Pool(2, context="fork")
    pool.map(inner, range(2), chunksize=1)
"""
    process = started(tmp_path, text)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(2)]
    pids = {int(one) for line in lines for one in line[1:]}
    assert len(pids) == 6
    assert pids <= set(in_session(process.pid))
    process.kill()
    process.communicate(timeout=20)
    assert gone(process.pid, 3), in_session(process.pid)


def test_workers_end_though_another_child_of_their_pools_process_lives_on(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    pool = Pool(1, context="fork")
    pool.apply(f.double, (1,))
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    print(child, pool._pool[0].pid, flush=True)
    pool.apply(f.nap, (60,))
"""
    process = started(tmp_path, text, stderr=None)
    assert process.stdout is not None
    child, worker = map(int, process.stdout.readline().split())
    try:
        process.kill()
        process.wait()
        until(lambda: not runs(worker), 3)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
        assert gone(process.pid, 3)


LEAVES = {
    "at its end": ("", 0),
    "by sys.exit": ("sys.exit(5)", 5),
    "by os._exit": ("os._exit(6)", 6),
    "by an error": ("raise LookupError", 1),
    "by SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}


@pytest.mark.parametrize("how", LEAVES)
def test_a_script_that_just_leaves_takes_its_workers_with_it(tmp_path: Path, how: str) -> None:
    leave, expected = LEAVES[how]
    text = f"""
if __name__ == "__main__":
    pool = Pool(2)
    pool.map(f.double, range(4))
    pending = pool.map_async(f.nap, [60] * 4)
    lazy = pool.imap(f.nap, f.endless())
    time.sleep(0.1)
    {leave}
"""
    begin = time.monotonic()
    code, _, err = ended(tmp_path, text)
    assert code == expected, err
    assert time.monotonic() - begin < 20
    assert err.count("Traceback") == (1 if how == "by an error" else 0), err


# a poor machine


@pytest.mark.long
def test_a_full_dev_shm_does_not_matter(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    for context in ("fork", "forkserver"):
        with Pool(2, context=context) as pool:
            made = pool.map(f.filled_million, range(20), chunksize=1)
            assert [one[7].item() for one in made] == list(range(20))
            sums = pool.map(f.total, made, chunksize=1)
            assert sums == [float(number << 17) for number in range(20)], sums
            assert all((one == number).all() for number, one in enumerate(pool.imap(f.same, made)))
    print(os.listdir("/dev/shm"))
"""
    code, out, err = ended(tmp_path, text, *with_small_dev_shm())
    assert code == 0, err
    assert out == "[]\n"


def test_models_need_no_dev_shm_either(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    with Pool(2) as pool:
        models = pool.map(f.linear, range(8))
        assert [one.weight[0, 0].item() for one in models] == list(range(8))
        pool.map(f.step, models)
    print(os.listdir("/dev/shm"))
"""
    code, out, err = ended(tmp_path, text, *with_small_dev_shm())
    assert code == 0, err
    assert out == "[]\n"


def test_sixty_four_descriptors_are_enough_for_any_number_of_tensors(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with Pool(2) as pool:
        kept = pool.map(f.filled, range(500), chunksize=1)
        again = pool.map(f.double, kept, chunksize=1)
        for number, (one, two) in enumerate(zip(kept, again, strict=True)):
            assert (one == number).all() and (two == 2 * number).all(), number
        kept = [pool.apply(f.parameter, (number,)) for number in range({parameters})]
        for number, one in enumerate(kept):
            assert (one == number).all()
"""
    code, _, err = ended(tmp_path, text.replace("{parameters}", "0"))
    assert code == 0, err


def test_sixty_four_descriptors_are_enough_for_any_number_of_parameters(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with Pool(2) as pool:
        kept = pool.map(f.parameter, range(200), chunksize=1)
        for number, one in enumerate(kept):
            assert isinstance(one, torch.nn.Parameter) and (one == number).all()
"""
    code, _, err = ended(tmp_path, text)
    assert code == 0, err


FEW = """
from cputrain.errors import ResourceError
import gc, multiprocessing
if __name__ == "__main__":
    with Pool(2, context="fork") as pool:
        pool.map(f.double, range(3))
    del pool
    gc.collect()
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = failed = 0
    for spare in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1 + spare, hard))
        try:
            with Pool(2, context="fork") as pool:
                assert pool.map(f.double, range(9)) == list(range(0, 18, 2))
            made += 1
            del pool
        except ResourceError as error:
            assert not made, spare
            assert "Too many open files" in str(error) and "ulimit -n" in str(error), error
            failed += 1
            del error
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.collect()
        assert not multiprocessing.active_children()
        lost = len(os.listdir("/proc/self/fd")) - used
        assert lost in (0, 2), (spare, lost)  # multiprocessing loses a pipe if it gets no second
        used += lost
    print(failed > 3, made > 3)
"""


def test_too_few_descriptors_are_told_at_the_start(tmp_path: Path) -> None:
    code, out, err = ended(tmp_path, FEW)
    assert code == 0, err
    assert out.split() == ["True", "True"]


SMALL = """
from cputrain.errors import ResourceError
if __name__ == "__main__":
    limit, bytes = resource.{limit}, {bytes}
    if limit == resource.RLIMIT_AS:
        with Pool(1) as pool:
            pool.map(f.filled, range(3))
        bytes += int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(limit, (bytes, bytes))
    try:
        with Pool(2) as pool:
            made = pool.map(f.filled, range(30), chunksize=1)
            print([one[9].item() for one in made] == list(range(30)), pool.map(f.total, made)[1])
    except ResourceError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("limit", "size", "expected"),
    [
        ("RLIMIT_FSIZE", 1 << 20, "Raise the limit on file sizes: ulimit -f unlimited."),
        ("RLIMIT_FSIZE", 1 << 28, "True 8192.0"),
        ("RLIMIT_AS", 1 << 30, "True 8192.0"),
        ("RLIMIT_AS", 1 << 20, "shared memory could not be made"),
    ],
)
def test_limits_on_memory_are_kept_or_told(
    tmp_path: Path, limit: str, size: int, expected: str
) -> None:
    code, out, err = ended(tmp_path, SMALL.format(limit=limit, bytes=size))
    assert code == 0, err
    assert expected in out
    assert "Traceback" not in err


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to have a user without processes")
def test_a_limit_on_processes_is_told_wherever_it_is_reached(tmp_path: Path) -> None:
    text = """
from cputrain.errors import ResourceError
def use(pool):
    told = threading.Event()
    pool.map_async(f.double, range(100), callback=lambda _: told.set())
    assert told.wait(30)
    assert pool.map(torch.sum, [torch.ones(20_000_000)]) == [20_000_000]
    return list(pool.imap(f.double, iter(range(100)))) == list(range(0, 200, 2))
if __name__ == "__main__":
    torch.set_num_threads(1)
    Pool(1).terminate()  # all that it needs has been read
    os.setuid(54321)
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    for limit in range(1, 12):
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, most))
        try:
            with Pool(4, context="fork") as pool:
                print("works", use(pool))
        except ResourceError as error:
            print(error)
"""
    tmp_path.chmod(0o777)
    code, out, err = ended(tmp_path, text)
    assert code == 0, err
    lines = out.splitlines()
    assert len(lines) == 11
    assert all("ulimit -u" in line or line == "works True" for line in lines), out
    assert "ulimit -u" in lines[0]
    assert lines[-1] == "works True"


# threads


@pytest.mark.parametrize("context", ["fork", None])
def test_a_pool_after_openmp_has_started_its_threads_does_not_hang(
    tmp_path: Path, context: str | None
) -> None:
    text = f"""
if __name__ == "__main__":
    torch.set_num_threads(2)
    x = torch.rand(400, 400)
    torch.mm(x, x); (torch.rand(1_000_000) + 1).sum()
    cpus = os.sched_getaffinity(0)
    for _ in range(3):
        with Pool(2, context={context!r}) as pool:
            expected = [(300 + 1) * 300.0 * 300] * 6
            assert pool.map(f.with_threads, [300] * 6, chunksize=1) == expected
            torch.mm(x, x)
            assert torch.get_num_threads() == 2
            assert os.sched_getaffinity(0) == cpus
            os.kill(pool._pool[0].pid, signal.SIGKILL)
            assert pool.map(f.with_threads, [300] * 6, chunksize=1) == expected
    assert torch.get_num_threads() == 2
"""
    code, _, err = ended(tmp_path, text)
    assert code == 0, err


def test_a_process_with_another_thread_is_not_forked_by_default() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, args=(30,))
    thread.start()
    try:
        with Pool(2) as pool:
            assert pool._ctx.get_start_method() == "forkserver"
            assert pool.map(f.double, range(9)) == list(range(0, 18, 2))
    finally:
        go.set()
        thread.join()
    with Pool(1) as pool:
        assert pool._ctx.get_start_method() == "fork"


def test_the_server_that_multiprocessing_hands_descriptors_out_with_does_not_matter() -> None:
    assert resource_sharer._resource_sharer._thread in threading.enumerate()
    with Pool(2) as pool:
        assert pool._ctx.get_start_method() == "fork"
        assert pool.map(f.double, range(9)) == list(range(0, 18, 2))


def test_a_task_may_have_a_pool_of_its_own() -> None:
    with Pool(2) as pool:
        assert pool.map(f.nested_sum, [5, 10, 20], chunksize=1) == [20, 90, 380]


def test_two_pools_at_once_do_not_disturb_each_other() -> None:
    with Pool(2) as one, Pool(2) as other:
        first = one.imap(f.double, range(100))
        second = other.imap(f.double, iter(range(100, 200)))
        assert list(zip(first, second, strict=True)) == [
            (2 * number, 2 * number + 200) for number in range(100)
        ]
        one.terminate()
        assert other.map(f.double, [torch.ones(5000)])[0].sum() == 10_000
    assert not any(worker.is_alive() for worker in one._pool)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_several_threads_may_have_pools_at_once(method: str) -> None:
    found: list[Any] = []

    def work(number: int) -> None:
        for _ in range(4):
            with Pool(2, context=method) as pool:
                found.append(pool.map(f.double, [torch.full((3000,), number)] * 3)[2][5].item())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([0, 2, 4] * 4)


def test_a_worker_is_reaped_while_another_process_has_its_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that another thread forks inherits the end that a worker closes as it exits."""
    fork, inherited = os.fork, []

    def fork_with_copy() -> int:
        inherited.append(os.dup(sys._getframe(1).f_locals["child_w"]))
        return fork()

    monkeypatch.setattr(os, "fork", fork_with_copy)
    before = children()
    try:
        with Pool(1, context="fork") as pool:
            assert pool.map(f.double, [1, 2]) == [2, 4]
        assert children() <= before
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    assert inherited


# for long


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_that_end_after_each_task_lose_nothing(method: str) -> None:
    tasks = 50 if method == "fork" else 10  # each worker starts with torch to load
    with Pool(2, maxtasksperchild=1, context=method) as pool:
        pids = pool.map(f.pid, range(tasks), chunksize=1)
        assert len(set(pids)) == tasks
        made = list(pool.imap(f.filled, range(tasks)))
        assert all((one == number).all() for number, one in enumerate(made))


@pytest.mark.long
def test_two_hundred_thousand_items_take_no_more_than_the_first_ones() -> None:
    signal.alarm(240)
    items, seen = 200_000, []
    with Pool(2) as pool:
        for number, one in enumerate(pool.imap(f.filled_some, iter(range(items)))):
            assert one[-1] == number
            if number % 20_000 == 10_000:
                seen.append((f.resident(), f.descriptors()))
    assert number == items - 1
    assert len({count for _, count in seen}) == 1
    assert max(size for size, _ in seen) - seen[1][0] < 16 << 20


def test_workers_that_take_long_to_end_do_not_stall_those_that_follow() -> None:
    with Pool(1, context="fork", maxtasksperchild=1) as pool:
        results = pool.map_async(f.ends_slowly, range(30), chunksize=1)
        assert results.get(20) == list(range(30))


# what a worker is given, and what a parent keeps


def test_the_parent_keeps_its_threads_and_its_processors_and_workers_have_their_own() -> None:
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    for method in ("fork", "forkserver"):
        with Pool(2, context=method) as pool:
            for threads, cpus, _ in pool.map(f.threads_and_cpus, range(6), chunksize=1):
                assert threads == 1
                assert cpus == set(read_machine(detail=False).budget.cpus)
            with pytest.raises(ArithmeticError):
                pool.apply(f.raises, ("plain",))
            if method == "fork":
                with pytest.raises(WorkerDied):
                    pool.apply(f.end, ("SIGKILL",))
            assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_no_two_workers_draw_the_same_numbers_and_the_parent_draws_as_ever(method: str) -> None:
    import numpy as np

    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    expected = torch.rand(3).tolist(), random.random(), float(np.random.rand())
    torch.manual_seed(5)
    random.seed(6)
    np.random.seed(7)
    drawn = []
    for _ in range(2):
        with Pool(2, context=method) as one, Pool(2, context=method) as other:
            for pool in (one, other):
                drawn += pool.map(f.draws, range(8), chunksize=1)
    with Pool(2, maxtasksperchild=1, context=method) as pool:
        drawn += pool.map(f.draws, range(8), chunksize=1)
    assert (torch.rand(3).tolist(), random.random(), float(np.random.rand())) == expected
    for stream in zip(*drawn, strict=True):
        assert len(set(stream)) == len(drawn) == 40


def test_a_nested_pool_draws_numbers_of_its_own() -> None:
    with Pool(2, context="fork") as pool:
        outer = pool.map(f.draws, range(8), chunksize=1)
        inner = [one for made in pool.map(_draws_in_a_pool, range(4), 1) for one in made]
    for stream in zip(*outer, *inner, strict=True):
        assert len(set(stream)) == len(outer) + len(inner)


def test_workers_of_a_nested_pool_are_numbered_below_the_worker_that_made_it() -> None:
    with Pool(2, context="fork") as pool:
        (_, outer), inner = pool.apply(_who_in_a_pool)
    assert len(outer) == 1
    assert len({identity for _, identity in inner}) == len(inner)  # each did one task
    for name, identity in inner:
        assert identity[:-1] == outer
        assert name == f"ForkPoolWorker-{':'.join(map(str, identity))}"


def _who_in_a_pool() -> tuple[Any, list[Any]]:
    with Pool(2, context="fork", maxtasksperchild=1) as pool:
        return f.who(), pool.map(f.who, range(4), chunksize=1)


def _draws_in_a_pool(_: object) -> list[Any]:
    with Pool(2, context="fork") as pool:
        return pool.map(f.draws, range(4), chunksize=1)


# StopIteration says that an iterator is at its end, and a task's must not be taken for that


@pytest.mark.parametrize("chunksize", [1, 3])
def test_a_stop_iteration_of_a_task_is_an_error_and_no_end(chunksize: int) -> None:
    items = ["StopIteration" if number == 5 else "" for number in range(12)]
    with Pool(2) as pool:
        with pytest.raises(StopIteration, match="stop"):
            pool.apply(f.raises, ("StopIteration",))
        with pytest.raises(StopIteration, match="stop"):
            pool.map(f.stops, items, chunksize)
        with pytest.raises(StopIteration, match="stop"):
            pool.starmap(f.stops, [(item,) for item in items], chunksize)
        for method in ("imap", "imap_unordered"):
            for source in (items, iter(items)):
                results = getattr(pool, method)(f.stops, source, chunksize)
                seen: list[Any] = []
                with pytest.raises(TaskError, match="must not raise StopIteration") as raised:
                    seen.extend(results)
                assert isinstance(raised.value.__cause__, StopIteration)
                left = [*seen, *results]
                assert len(left) == 12 - chunksize or method == "imap_unordered"


def test_thousands_of_tasks_survive_a_stop_iteration_of_one() -> None:
    items = ["StopIteration" if number == 2112 else "" for number in range(6000)]
    with Pool(2) as pool:
        results = pool.imap(f.stops, items)
        assert sum(1 for _ in itertools.islice(results, 2112)) == 2112
        with pytest.raises(TaskError):
            next(results)
        assert sum(1 for _ in results) == 6000 - 2113


@pytest.mark.parametrize("kind", ["GeneratorExit", "KeyboardInterrupt", "SystemExit", "deadly"])
def test_an_exception_that_is_none_ends_neither_worker_nor_script(kind: str) -> None:
    with Pool(1) as pool:
        for method in ("map", "imap", "imap_unordered"):
            with pytest.raises(TaskError, match="is no Exception"):
                list(getattr(pool, method)(f.raises, [kind]))
        with pytest.raises(TaskError, match="is no Exception"):
            pool.apply(f.raises, (kind,))
        assert pool.map(f.double, [1]) == [2]


# interrupts


def test_an_interrupt_in_a_finalizer_is_raised_after_it(tmp_path: Path) -> None:
    text = """
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
if __name__ == "__main__":
    with Pool(1) as pool:
        pool.map(f.double, [1])
    try:
        Finalized()
        for _ in range(50): time.sleep(0.1)
        print("lost")
    except KeyboardInterrupt:
        print("raised")
"""
    assert ended(tmp_path, text) == (0, "raised\n", "")


def test_an_interrupted_call_leaves_the_pool_usable() -> None:
    with Pool(2) as pool:
        for wait in (
            lambda: pool.map(f.nap, [0.5] * 2),
            lambda: next(pool.imap(f.nap, [0.5])),
            lambda: pool.apply_async(f.nap, (0.5,)).get(),
            lambda: pool.apply_async(f.nap, (0.5,)).wait(5),
        ):
            timer = threading.Timer(0.1, signal.pthread_kill, (_MAIN, signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                wait()
            timer.join()
            assert pool.map(f.double, range(9)) == list(range(0, 18, 2))
        pool.close()
        pool.join()


_MAIN = threading.main_thread().ident or 0


class Interrupting:
    """Interrupts the script while it is packed, once."""

    armed = True

    def __reduce__(self) -> Any:
        if Interrupting.armed:
            Interrupting.armed = False
            signal.raise_signal(signal.SIGINT)
        return int, (3,)


@pytest.mark.parametrize("method", ["map_async", "imap", "imap_unordered"])
def test_an_interrupt_while_arguments_are_packed_leaves_a_pool_that_can_be_joined(
    method: str,
) -> None:
    Interrupting.armed = True
    pool = Pool(2)
    with pytest.raises(KeyboardInterrupt):
        getattr(pool, method)(f.double, [1, Interrupting(), 2] * 50, 1)
    assert pool.map(f.double, [1]) == [2]
    pool.close()
    pool.join()


COMPUTES = """
import sys
import torch

def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        torch.ones(1 << 22).sin_()

def items():
    while True:
        compute(0.5)
        yield 1

if __name__ == "__main__":
    pool = Pool(1)
    if {how!r} == "callback":
        pool.apply_async(abs, (1,), callback=lambda _: compute(1))
    else:
        results = pool.imap(abs, items())
    time.sleep(0.3)
    if {how!r} in ("callback", "terminated"):
        pool.terminate()
    print("end")
"""


@pytest.mark.parametrize("how", ["terminated", "left open", "callback"])
def test_a_script_may_end_while_a_thread_of_the_pool_is_within_torch(
    tmp_path: Path, how: str
) -> None:
    """Python ends such a thread by SIGABRT."""
    code, out, err = ended(tmp_path, COMPUTES.format(how=how))
    assert (code, out) == (0, "end\n"), err
    assert "terminate called" not in err


def test_a_script_does_not_wait_for_an_iterator_that_waits(tmp_path: Path) -> None:
    text = """
def items():
    yield 1
    threading.Event().wait()

if __name__ == "__main__":
    pool = Pool(1)
    print(next(pool.imap(abs, items())))
"""
    code, out, err = ended(tmp_path, text)
    assert (code, out) == (0, "1\n"), err

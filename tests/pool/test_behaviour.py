"""A pool does what multiprocessing's does, and imap takes no more than it needs."""

from __future__ import annotations

import gc
import inspect
import io
import itertools
import multiprocessing
import multiprocessing.pool
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cputrain import Pool
from cputrain.errors import UsageError
from cputrain.machine import read_machine
from tests.launch.programs import PYTHON, in_terminal
from tests.pool import functions as f
from tests.pool.functions import METHODS, gone, until
from tests.pool.scripts import HEAD, ended, started

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def pool(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Pool]:
    with Pool(2, context="fork") as made:
        yield made
    request.node.funcargs.clear()  # who looks for what is left does so before pytest lets go


@pytest.fixture(scope="module")
def lasting() -> Iterator[Pool]:
    """For Hypothesis, which calls one test many times."""
    with Pool(2, context="fork") as made:
        made.map(f.double, range(4))
        assert all(worker.pid for worker in made._pool)  # both have started
        yield made


# as the built-in functions


@settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(
    items=st.lists(st.one_of(st.integers(), st.text(max_size=4), st.lists(st.integers()))),
    chunksize=st.one_of(st.none(), st.integers(1, 7)),
    ahead=st.one_of(st.none(), st.integers(1, 9)),
)
def test_every_method_gives_what_the_built_in_map_gives(
    lasting: Pool, items: list[Any], chunksize: int | None, ahead: int | None
) -> None:
    expected = list(map(f.double, items))
    size = chunksize or 1
    assert lasting.map(f.double, items, chunksize) == expected
    assert lasting.map(f.double, iter(items), chunksize) == expected
    assert lasting.map_async(f.double, items, chunksize).get() == expected
    assert list(lasting.imap(f.double, items, size, ahead=ahead)) == expected
    assert list(lasting.imap(f.double, iter(items), size, ahead=ahead)) == expected
    unordered = lasting.imap_unordered(f.double, iter(items), size, ahead=ahead)
    assert sorted(unordered, key=repr) == sorted(expected, key=repr)
    pairs = list(zip(items, items, strict=True))
    assert lasting.starmap(f.add, pairs, chunksize) == list(itertools.starmap(f.add, pairs))
    assert lasting.starmap_async(f.add, pairs, chunksize).get() == expected


def test_a_pool_is_one_of_multiprocessings() -> None:
    before = set(multiprocessing.active_children())
    pool = Pool(2)
    assert isinstance(pool, multiprocessing.pool.Pool)
    assert pool._processes == len(pool._pool) == 2
    assert "RUN" in repr(pool)
    assert all(worker.is_alive() and worker.exitcode is None for worker in pool._pool)
    pool.close()
    assert "CLOSE" in repr(pool)
    with pytest.raises(ValueError, match="not running"):
        pool.map(f.double, [1])
    pool.join()
    pool.terminate()
    assert "TERMINATE" in repr(pool)
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(
    "name",
    ["map", "imap", "imap_unordered", "starmap", "apply", "apply_async", "map_async",
     "starmap_async", "__init__"],
)  # fmt: skip
def test_every_method_can_be_called_as_multiprocessings(name: str) -> None:
    theirs = inspect.signature(getattr(multiprocessing.pool.Pool, name)).parameters
    ours = inspect.signature(getattr(Pool, name)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for parameter in list(ours.values())[len(theirs) :]:
        assert parameter.kind is parameter.KEYWORD_ONLY
    for parameter in theirs.values():
        assert ours[parameter.name].default == parameter.default


def test_there_are_as_many_workers_as_there_are_cores_to_use() -> None:
    with Pool() as pool:
        assert len(pool._pool) == read_machine(detail=False).budget.physical_cores


def test_a_pool_cannot_be_pickled(pool: Pool) -> None:
    with pytest.raises(NotImplementedError, match="cannot be passed between processes"):
        pickle.dumps(pool)


def test_a_task_that_could_not_be_sent_may_have_been_ended_already(pool: Pool) -> None:
    """As those of a pool that is terminated meanwhile are."""
    ended: list[Any] = []
    engine, finish = pool._engine, pool._engine._finish
    engine._finish = lambda tasks, *outcome: (ended.append(tasks[0]), finish(tasks, *outcome))  # type: ignore[assignment, func-returns-value]
    assert pool.apply(f.double, (2,)) == 4
    engine._on_send_failure(ended[0], ValueError())
    assert pool.apply(f.double, (3,)) == 6


def test_an_unclosed_pool_is_warned_of() -> None:
    before = set(multiprocessing.active_children())
    pool = Pool(1)
    with pytest.warns(ResourceWarning, match="unclosed running multiprocessing pool"):  # noqa: PT031
        del pool
        gc.collect()
    until(lambda: set(multiprocessing.active_children()) <= before)


def test_a_pool_can_be_left_and_joined_and_ended_again_and_again() -> None:
    pool = Pool(1)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    result = pool.map_async(f.double, range(100))
    pool.close()
    pool.close()
    pool.join()
    pool.join()
    assert result.get(1) == list(range(0, 200, 2))
    pool.terminate()
    pool.terminate()
    pool.join()


def test_results_that_are_not_there_in_time_are_told(pool: Pool) -> None:
    result = pool.apply_async(f.nap, (0.5,))
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(0.05)
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    assert result.get() == 0.5
    assert result.ready()
    assert result.successful()


def test_an_empty_call_is_over_at_once(pool: Pool) -> None:
    assert pool.map(f.double, []) == []
    assert pool.starmap(f.add, iter(())) == []
    assert list(pool.imap(f.double, [])) == []
    assert list(pool.imap_unordered(f.double, iter(()))) == []
    found: list[Any] = []
    pool.map_async(f.double, [], callback=found.append).wait(5)


@pytest.mark.parametrize("method", ["fork", multiprocessing.get_context("fork"), None])
def test_a_context_is_given_by_name_or_itself(method: Any) -> None:
    with Pool(1, context=method) as pool:
        assert pool._ctx.get_start_method() == "fork"
        assert pool.apply(f.double, (2,)) == 4


WRONG: dict[str, Any] = {
    "timeout": [0, -1, float("nan"), "soon"],
    "retries": [-1, 1.5, "often"],
    "context": ["frok", 5],
    "processes": ["2", 2.5],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_option_is_named_with_its_rule(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be .*found {value!r}"):
        Pool(**{"processes": 1, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout", 0), ("timeout", "x"), ("retries", -1), ("ahead", 0), ("ahead", "x")],
)
def test_a_wrong_option_of_a_call_is_named_with_its_rule(pool: Pool, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be .*found {value!r}"):
        pool.imap(f.double, [1], **{name: value})
    assert pool.map(f.double, range(3)) == [0, 2, 4]


@pytest.mark.parametrize("value", [0, -1])
def test_a_chunksize_below_one_is_told(pool: Pool, value: int) -> None:
    with pytest.raises(ValueError, match=r"[Cc]hunksize"):
        pool.imap(f.double, [1], chunksize=value)
    with pytest.raises(ValueError, match=r"[Cc]hunksize"):
        pool.map(f.double, [1], chunksize=value)


def test_what_multiprocessing_refuses_is_refused_as_there() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Pool(0)
    with pytest.raises(ValueError, match="maxtasksperchild"):
        Pool(1, maxtasksperchild=0)
    with pytest.raises(TypeError, match="callable"):
        Pool(1, initializer=5)  # type: ignore[arg-type]


def test_several_threads_may_use_one_pool(pool: Pool) -> None:
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        items = range(number, number + 60)
        found[number] = [
            pool.map(f.double, items, chunksize=number % 5 + 1),
            list(pool.imap(f.double, iter(items))),
            sorted(pool.imap_unordered(f.double, items)),
            [pool.apply(f.double, (item,)) for item in items],
        ]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        assert found[number] == [list(range(2 * number, 2 * number + 120, 2))] * 4


def test_several_threads_may_share_one_iterator(pool: Pool) -> None:
    results = pool.imap(f.double, iter(range(400)))
    found: list[int] = []

    def work() -> None:
        found.extend(results)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(0, 800, 2))


# imap is lazy


class Taken:
    """Items without end that know how many of them have been taken."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.count += 1
            yield self.count - 1


class CountedList(list[int]):
    """A list that knows how far it has been iterated."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            self.count += 1
            yield item


@pytest.mark.parametrize("make", [Taken, lambda: CountedList(range(1000))], ids=["endless", "list"])
@pytest.mark.parametrize(("ahead", "chunksize"), [(1, 1), (5, 1), (7, 3), (2, 3), (40, 3)])
@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_no_more_is_taken_than_may_be_ahead(
    pool: Pool, method: str, make: Any, ahead: int, chunksize: int
) -> None:
    items = make()
    results = getattr(pool, method)(f.double, items, chunksize, ahead=ahead)
    most = max(ahead, chunksize)
    until(lambda: items.count == most - most % chunksize)  # items are taken by chunks
    for consumed in range(1, 60):
        next(results)
        assert items.count <= consumed + most
    time.sleep(0.05)
    assert items.count <= consumed + most
    if isinstance(items, Taken):  # those of a list are taken some at once
        assert items.count > consumed + most - chunksize
    results.close()


def test_what_is_taken_ahead_by_default_is_bounded(pool: Pool) -> None:
    for chunksize in (1, 3):
        items = Taken()
        results = pool.imap(f.double, items, chunksize)
        next(results)
        time.sleep(0.3)
        before = items.count
        time.sleep(0.2)
        assert items.count == before <= 1000 * chunksize
        results.close()


def test_large_items_are_not_taken_far_ahead(pool: Pool) -> None:
    taken = 0

    def items() -> Iterator[torch.Tensor]:
        nonlocal taken
        while True:
            taken += 1
            yield torch.ones(1 << 20)

    for number, value in enumerate(pool.imap(f.total, items())):
        assert value == 1 << 20
        if number == 20:
            break
    assert taken <= 21 + 40


def test_an_endless_iterator_can_be_consumed_and_left(pool: Pool) -> None:
    items = Taken()
    for number, value in enumerate(pool.imap(f.double, items, ahead=8)):
        assert value == 2 * number
        if number == 200:
            break
    gc.collect()
    time.sleep(0.05)
    before = items.count
    assert before <= 201 + 8
    assert pool.map(f.double, range(9)) == list(range(0, 18, 2))
    time.sleep(0.05)
    assert items.count == before
    pool.close()
    pool.join()
    assert items.count == before


def test_an_imap_that_nobody_consumes_has_its_effects(tmp_path: Path) -> None:
    for method, make in itertools.product(("imap", "imap_unordered"), (list, iter)):
        folder = tmp_path / f"{method} {make.__name__}"
        folder.mkdir()
        pool = Pool(2)
        getattr(pool, method)(partial(_touch, str(folder)), make(range(100)), chunksize=3)
        pool.close()
        pool.join()
        assert len(list(folder.iterdir())) == 100


def test_an_imap_that_is_held_and_not_consumed_has_its_effects(tmp_path: Path) -> None:
    pool = Pool(2)
    results = pool.imap(partial(_touch, str(tmp_path)), iter(range(100)))
    pool.close()
    pool.join()
    assert len(list(tmp_path.iterdir())) == 100
    assert list(results) == list(range(100))


def _touch(folder: str, number: int) -> int:
    Path(folder, str(number)).touch()
    return number


@pytest.mark.parametrize("method", ["imap", "imap_unordered"])
def test_an_iterator_that_raises_is_told_after_what_came_before(pool: Pool, method: str) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise LookupError("no more")

    results = getattr(pool, method)(f.double, items())
    found = []
    with pytest.raises(LookupError, match="no more"):  # noqa: PT012
        for value in results:
            found.append(value)
    if method == "imap":
        assert found == [0, 2, 4, 6, 8]
    found.extend(results)
    assert sorted(found) == [0, 2, 4, 6, 8]
    with pytest.raises(LookupError):
        pool.map(f.double, items())
    assert pool.map(f.double, range(3)) == [0, 2, 4]


def test_an_iterator_that_blocks_stalls_nobody_else(pool: Pool) -> None:
    go = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        go.wait(30)
        yield 2

    results = pool.imap(f.double, items())
    assert next(results) == 2
    assert pool.map(f.double, range(50)) == list(range(0, 100, 2))
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.05)
    go.set()
    assert list(results) == [4]


def test_an_iterator_may_use_the_pool(pool: Pool) -> None:
    def items() -> Iterator[int]:
        for number in range(20):
            yield pool.apply(f.double, (number,))

    assert list(pool.imap(f.double, items())) == list(range(0, 80, 4))
    assert list(pool.imap(f.double, pool.imap(f.double, iter(range(20))))) == list(range(0, 80, 4))


def test_next_waits_no_longer_than_asked(pool: Pool, tmp_path: Path) -> None:
    results = pool.imap(f.wait_for, [tmp_path / "go", None])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.1)
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(0)
    (tmp_path / "go").touch()  # what waits longer than it was asked to never gets here
    assert list(results) == [None, None]
    with pytest.raises(StopIteration):
        results.next(timeout=1)


def test_imap_keeps_the_order_and_unordered_does_not_wait(pool: Pool) -> None:
    naps = [1.0, 0.01, 0.02, 0.03]
    assert next(pool.imap_unordered(f.nap, naps)) == 0.01
    assert list(pool.imap(f.nap, naps)) == naps
    assert sorted(pool.imap_unordered(f.nap, naps)) == sorted(naps)


def test_two_imaps_can_be_consumed_in_turn(pool: Pool) -> None:
    one, other = pool.imap(f.double, f.endless()), pool.imap(f.double, range(100, 150))
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        assert (left, right) == (2 * number, 2 * number + 200)
    assert number == 49


# the bar


@pytest.mark.parametrize("method", ["map", "starmap", "imap", "imap_unordered"])
def test_a_bar_is_shown_on_standard_error_once_it_is_over(pool: Pool, method: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    items = [(1,)] * 30 if method == "starmap" else [1] * 30
    with redirect_stdout(out), redirect_stderr(err):
        made = list(getattr(pool, method)(f.double, items, progress=True))
    assert made == [2] * 30
    assert out.getvalue() == ""
    lines = err.getvalue().splitlines()
    assert len(lines) == 1, lines
    assert "double" in lines[0]
    assert "30/30" in lines[0]


def test_a_bar_of_items_without_a_length_counts_them(pool: Pool) -> None:
    err = io.StringIO()
    with redirect_stderr(err):
        assert len(list(pool.imap(f.double, (one for one in range(30)), progress=True))) == 30
    (line,) = err.getvalue().splitlines()
    assert "30/" in line


def test_all_calls_of_a_pool_show_a_bar_if_it_is_asked_for_there() -> None:
    err = io.StringIO()
    with redirect_stderr(err), Pool(1, progress=True) as pool:
        pool.map(f.double, range(7))
        list(pool.imap(f.double, range(8)))
        pool.map(f.double, range(9), progress=False)
        assert pool.apply(f.double, (1,)) == 2
        assert pool.map_async(f.double, range(3)).get() == [0, 2, 4]
    assert [line.split()[2] for line in err.getvalue().splitlines()] == ["7/7", "8/8"]


def test_a_bar_survives_any_number_of_errors(pool: Pool) -> None:
    for _ in range(3):
        with redirect_stderr(io.StringIO()), pytest.raises(ArithmeticError):
            pool.map(f.raises, ["plain"] * 6, 1, progress=True)
    assert pool.map(f.double, range(9)) == list(range(0, 18, 2))


def test_a_bar_is_left_as_it_is_by_an_error(pool: Pool) -> None:
    err = io.StringIO()
    with redirect_stderr(err), pytest.raises(ArithmeticError):
        pool.map(f.raises, ["plain"], progress=True)
    assert len(err.getvalue().splitlines()) == 1
    err = io.StringIO()
    with redirect_stderr(err), pytest.raises(ArithmeticError):
        list(pool.imap(f.raises, ["plain"] * 3, progress=True))
    until(lambda: len(err.getvalue().splitlines()) == 1)


@pytest.mark.parametrize("call", ["list(pool.imap(f.nap, naps, progress=True))",
                                  "pool.map(f.nap, naps, 1, progress=True)"])  # fmt: skip
def test_a_bar_is_left_as_it_is_by_an_interrupt(tmp_path: Path, call: str) -> None:
    text = f"""
if __name__ == "__main__":
    naps = [0.01] * 4 + [60] * 4
    with Pool(2) as pool:
        pool.map(f.double, range(4))
        print("ready", flush=True)
        {call}
"""
    process = started(tmp_path, text)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert gone(process.pid, 2)
    assert process.returncode == -signal.SIGINT
    assert out == ""
    assert err.count("Traceback") == 1
    assert err.count("4/8") == 1


def test_a_bar_in_a_terminal_ends_complete(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{HEAD}\n"
        "if __name__ == '__main__':\n"
        "    with Pool(2) as pool:\n"
        "        pool.map(f.nap, [0.02] * 20, 1, progress=True)\n"
    )
    root = str(Path(__file__).parents[2])
    shown, status = in_terminal(
        ("/usr/bin/env", f"PYTHONPATH={root}", "TERM=xterm", PYTHON, str(script)), tmp_path
    )
    assert status == 0, shown
    assert "20/20" in shown
    assert "\x1b[?25h" in shown  # the cursor is there again


GONE = """
if __name__ == "__main__":
    with Pool(2) as pool:
        made = pool.map(f.double, range(5), progress=True)
        made += pool.imap(f.double, range(5), progress=True)
        made += pool.map(f.double, range(5))
    print(made)
"""


def test_a_bar_that_nobody_can_read_costs_no_result(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        _, out, _ = ended(tmp_path, GONE, stderr=write)
    finally:
        os.close(write)
    assert out == f"{[0, 2, 4, 6, 8] * 3}\n"


def test_a_bar_without_standard_error_is_not_shown_elsewhere(tmp_path: Path) -> None:
    code, out, _ = ended(tmp_path, GONE, "sh", "-c", 'exec "$@" 2>&-', "sh")
    assert code == 0
    assert out == f"{[0, 2, 4, 6, 8] * 3}\n"


# what is printed

PRINTS = """
def say(item):
    print("item", item)
    sys.stderr.write(f"error {{item}}\\n")
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    print("before", end="; ")
    sys.stdout.write("unflushed\\n")
    with Pool(2, context="{method}") as pool:
        try:
            for _ in pool.imap(say, range(8)): pass
        except RuntimeError:
            print("lost")
    print("after")
"""


@pytest.mark.parametrize("method", f.METHODS)
def test_what_tasks_print_is_there_once(tmp_path: Path, method: str) -> None:
    code, out, err = ended(tmp_path, PRINTS.format(method=method))
    assert code == 0, err
    lines = out.splitlines()
    assert lines.count("before; unflushed") == 1
    assert lines.count("lost") == lines.count("after") == 1
    for item in range(7):
        assert lines.count(f"item {item}") == 1, out
        assert err.splitlines().count(f"error {item}") == 1


@pytest.mark.parametrize("chunksize", [1, 2, 7, 100])
def test_no_small_item_is_dropped_or_done_twice(pool: Pool, chunksize: int) -> None:
    for items in (range(3000), iter(range(3000))):
        assert list(pool.imap(f.double, items, chunksize)) == list(range(0, 6000, 2))
    unordered = pool.imap_unordered(f.double, range(3000), chunksize)
    assert sorted(unordered) == list(range(0, 6000, 2))


def test_each_item_is_its_own_though_small_ones_travel_together(pool: Pool) -> None:
    assert set(pool.imap(f.grown, [[0]] * 3000)) == {2}


def test_an_iterator_may_hand_out_the_same_thing_again_changed(pool: Pool) -> None:
    def refilled() -> Any:
        same = [0]
        for number in range(3000):
            same[0] = number
            yield same

    assert list(pool.imap(f.first_of, refilled())) == list(range(3000))


def test_a_function_with_much_to_carry_arrives_in_a_fresh_worker() -> None:
    with Pool(1) as fresh:
        carried = partial(f.add, list(range(5000)))
        assert fresh.map(carried, [[1]]) == [[*range(5000), 1]]


def test_workers_that_end_after_each_task_are_replaced_without_end() -> None:
    with Pool(1, maxtasksperchild=1) as brief:
        for _ in range(12):
            assert brief.map(f.double, range(8), chunksize=1) == list(range(0, 16, 2))


@pytest.mark.parametrize("method", METHODS)
def test_every_worker_has_a_number_of_its_own(method: str) -> None:
    with Pool(3, context=method) as pool:
        told = [pool.apply(f.who) for _ in range(2)] + pool.map(f.who, range(30), chunksize=1)
        names = {worker.name for worker in pool._pool}
    assert len(names) == 3
    assert {name for name, _ in told} <= names
    by_name = dict(told)
    assert len(set(by_name.values())) == len(by_name)
    assert all(name.endswith(f"PoolWorker-{number}") for name, (number,) in by_name.items())


def test_a_pool_that_is_left_to_the_end_of_a_script_says_nothing(tmp_path: Path) -> None:
    text = """
import gc
if __name__ == "__main__":
    pool = Pool(2)
    pool.cycle = pool
    assert pool.map(f.double, range(4)) == [0, 2, 4, 6]
"""
    assert ended(tmp_path, text) == (0, "", "")

"""Options of the test run, and its rule on skipped tests."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator

import hypothesis
import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.durations import Durations

# threads that spin would take the cores from other tests; read when torch is loaded
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # numpy's wait 30 ms for the first work

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

LACKING = (
    "needs a GPU", "needs an OpenCL device", "needs a network of its own", "needs Slurm",
)  # fmt: skip
"""What a machine that tests may lack; a test that is skipped for anything else could have run."""

SKIPPED = 9
"""The exit code if one could have: none of pytest's own."""

OVER_BUDGET = 10
"""The exit code if the tests of a folder took much longer than CONTRIBUTING.md allows."""

KEPT_THREADS = re.compile(r"cputrain|.*\(_serve\)|ThreadPoolExecutor-|Dask-")
"""Names of threads that last as long as their process: ours and those of libraries."""

DURATIONS: list[Durations] = []
"""Collector of the durations of tests; empty unless CPUTRAIN_CI is set."""


def pytest_configure() -> None:
    """Take Ctrl-C where a shell has started the tests in the background, and had it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        from tests.interpreters import forked

        forked.install()
    if os.environ.get("CPUTRAIN_CI"):
        from tests.durations import Durations

        DURATIONS.append(Durations())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ours to pytest's."""
    parser.addoption(
        "--execute",
        action="store_true",
        help="start an interpreter for every script, instead of forking one that has torch",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files in tests/golden anew, instead of comparing with them",
    )


def pytest_collection_finish() -> None:
    """Leave the scripts of tests the number of spins that they have without tests."""
    if os.environ.get("GOMP_SPINCOUNT") == "0":
        del os.environ["GOMP_SPINCOUNT"]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Have `make test` run fewer combinations; begin with the files that take longest."""
    from tests.durations import FIRST
    from tests.selected import mark_combinations

    mark_combinations(items)
    yield
    order = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(FIRST)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have scripts start in forked interpreters, unless the test has the mark `executed`."""
    from tests.interpreters.forked import Switch

    Switch.is_on = not (item.config.getoption("execute") or item.get_closest_marker("executed"))


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_others():
    """Freeze the objects of earlier modules, which would be most of every garbage collection.

    What they have freed goes back to the operating system: a fork copies the tables of its pages.
    """
    gc.collect()
    gc.freeze()
    if sys.platform == "linux":
        from tests.interpreters import huge_pages

        ctypes.CDLL(None).malloc_trim(0)
        huge_pages.collapse()


@pytest.fixture(autouse=True)
def _others_wait(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Have the tests of other workers wait while one runs that needs the machine to itself.

    Whoever waits for the machine holds the gate, so that nobody else begins a test.
    """
    if not hasattr(request.config, "workerinput"):  # no worker of pytest-xdist
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent
    with (folder / "gate").open("w") as gate, (folder / "machine").open("w") as machine:
        fcntl.flock(gate, fcntl.LOCK_EX)
        is_alone = request.node.get_closest_marker("alone") is not None
        fcntl.flock(machine, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        if not is_alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield
        for file in (machine, gate):  # processes that were forked hold their copies
            fcntl.flock(file, fcntl.LOCK_UN)


@pytest.fixture(autouse=True)
def _threads_as_they_were():
    """A test that leaves a thread, or torch another number of them, misleads those behind it."""
    before, running = _threads(), set(threading.enumerate())
    yield
    assert before in {None, _threads()}
    end = time.monotonic() + 20  # such as compilers on a busy machine
    while left := [
        thread
        for thread in threading.enumerate()
        if thread not in running
        and not KEPT_THREADS.match(thread.name)
        and not isinstance(thread, threading._DummyThread)  # another library's, as autograd's
    ]:
        if left[0].name == "tqdm_monitor":
            left[0].exit()
            sys.modules["tqdm"].tqdm.monitor = None
        assert time.monotonic() < end, left
        gc.collect()  # of an exception that holds a loader, for example
        time.sleep(0.01)


@pytest.fixture
def one_thread():
    """Have torch take one thread: small tensors have no work for two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return (
        None if torch is None or not hasattr(torch, "get_num_threads") else torch.get_num_threads()
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each phase of a test took."""
    for durations in DURATIONS:
        durations.add(report.nodeid, report.duration)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With CPUTRAIN_CI set, print where the time went."""
    for durations in DURATIONS:
        terminalreporter.section("durations")
        for name, seconds in durations.by_folder().most_common():
            terminalreporter.write_line(f"{seconds:8.1f} s  tests/{name}")
        for name, seconds in durations.slowest():
            terminalreporter.write_line(f"{seconds:8.1f} s  {name}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CPUTRAIN_CI set, fail when a test was skipped that could have run here.

    So it does when the tests of a folder took much longer than CONTRIBUTING.md allows.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CPUTRAIN_CI") or reporter is None:
        return
    reasons = {
        str(report.longrepr[-1]).removeprefix("Skipped: ")
        for report in reporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    }
    for reason in sorted(reason for reason in reasons if not reason.startswith(LACKING)):
        reporter.write_line(f"a test was skipped that could have run here: {reason}", red=True)
        session.exitstatus = SKIPPED
    if session.exitstatus == 0:
        from tests.durations import budgets, over_budget

        for fault in over_budget(DURATIONS[0].by_folder(), budgets()):
            reporter.write_line(fault, red=True)
            session.exitstatus = OVER_BUDGET

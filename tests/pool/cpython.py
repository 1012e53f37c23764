"""CPython's own tests of Pool, with cputrain.Pool in its place.

`python -m tests.pool.cpython METHOD [NAME…]` runs them under one start method. CPython installs its
tests for one method into a module, and a name in `multiprocessing.pool` is all that they see.
"""

from __future__ import annotations

import multiprocessing.managers
import multiprocessing.pool
import sys
import unittest
from typing import Any

from test import _test_multiprocessing as theirs
from test.support import script_helper

from cputrain.pool import Pool

multiprocessing.pool.Pool = Pool  # type: ignore[misc]  # before anything has looked it up
multiprocessing.managers.SyncManager.register(
    "Pool",
    Pool,
    multiprocessing.managers.PoolProxy,  # type: ignore[attr-defined]
)

NAMES = ("Pool", "TestInitializers", "TestStdinBadfiledescriptor")
"""What is in the names of their classes that test a pool."""


SINGLE_TESTS = {"TestSyncManagerTypes": ("test_pool",)}
"""Tests of pools in classes that are about something else."""


def of_pools(name: str, case: Any) -> bool:
    """Whether a class of theirs tests a process pool."""
    return (
        isinstance(case, type)
        and issubclass(case, unittest.TestCase)
        and any(part in name for part in NAMES)
        and not name.startswith("WithThreads")
    )


def in_a_script(*arguments: Any, **options: Any) -> Any:
    """Their script, run with our pool: it starts from nothing, in an interpreter of its own."""
    script = arguments[-1].replace("from multiprocessing import Pool", "from cputrain import Pool")
    return _assert_python_ok(*arguments[:-1], script, **options)


class SaidAtOnce(unittest.TextTestResult):
    """Says what is wrong at once: a pool left open by a failed test may keep this from ending."""

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        print(self.errors[-1][1], flush=True)

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        print(self.failures[-1][1], flush=True)


_assert_python_ok = script_helper.assert_python_ok

method, *names = sys.argv[1:]
# in spawned workers, too: they look the tests' functions up here
theirs.install_tests_in_module_dict(globals(), method)

if __name__ == "__main__":
    script_helper.assert_python_ok = in_a_script
    kept = {name: case for name, case in globals().items() if of_pools(name, case)}
    suite = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(case)
        for name, case in kept.items()
        if not names or any(part in name for part in names)
    )
    suite.addTests(
        globals()[case](test)
        for case, tests in SINGLE_TESTS.items()
        for test in tests
        if hasattr(globals().get(case), test) and (not names or any(part in case for part in names))
    )
    print("classes:", *sorted({*kept, *SINGLE_TESTS}))
    setUpModule()  # type: ignore[name-defined]  # noqa: F821
    outcome = unittest.TextTestRunner(verbosity=2, resultclass=SaidAtOnce).run(suite)
    tearDownModule()  # type: ignore[name-defined]  # noqa: F821
    print(f"{outcome.testsRun} ran, {len(outcome.skipped)} skipped")
    sys.exit(not outcome.wasSuccessful())

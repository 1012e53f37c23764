"""How long the tests of each folder take, against the table of budgets in CONTRIBUTING.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import median

TABLE = Path(__file__).parents[1] / "CONTRIBUTING.md"

ROW = re.compile(r"^\| `tests/(\w*)` \|[^|]*\| *(\d+) s \|", re.MULTILINE)

FACTOR = 2.0
"""A folder may take this many times its budget."""


FIRST = (
    "tests/diagnose/test_command.py", "tests/pool/test_faults.py", "tests/split/test_zoo.py",
    "tests/opencl/test_opencl.py", "tests/ranks/test_nodes.py",
    "tests/interpreters/test_same_as_executed.py", "tests/ranks/test_exchange.py",
    "tests/runtime/test_allocator.py", "tests/libraries/test_libraries.py",
    "tests/split/test_devices.py", "tests/launch/test_other_scripts.py",
    "tests/runtime/test_generated_optimizers.py", "tests/tune/test_trials.py",
    "tests/step/test_recorded.py", "tests/step/test_step.py",
    "tests/ranks/test_ranks.py", "tests/backends/test_comparison.py", "tests/bench/test_loaders.py",
)  # fmt: skip
"""The files that begin: first one with tests that have the machine to themselves, beside some whose
tests are short, so that it need not wait for them; then those that take longest, so that none is
left alone at the end."""


class Durations:
    """Seconds of setups, calls and teardowns, by the file of their tests."""

    def __init__(self) -> None:
        self.by_test: Counter[str] = Counter()

    def add(self, test: str, seconds: float) -> None:
        """Add the duration of one phase of a test."""
        self.by_test[test] += seconds

    def by_folder(self) -> Counter[str]:
        """Return the seconds of each folder of `tests`; files beside the folders have ""."""
        folders: Counter[str] = Counter()
        for test, seconds in self.by_test.items():
            parts = test.partition("::")[0].split("/")
            folders[parts[1] if len(parts) > 2 else ""] += seconds
        return folders

    def slowest(self, count: int = 10) -> list[tuple[str, float]]:
        """Return the slowest tests and their seconds."""
        return self.by_test.most_common(count)


def budgets(text: str | None = None) -> dict[str, int]:
    """Return the seconds that each folder may take, from the table in CONTRIBUTING.md."""
    return {name: int(seconds) for name, seconds in ROW.findall(text or TABLE.read_text())}


def over_budget(spent: Mapping[str, float], allowed: Mapping[str, int]) -> list[str]:
    """Return a sentence on each folder that takes much longer than its budget, or has none.

    A slow machine is slow in every folder: where the half of them takes longer than its budget, all
    may take as many times theirs.
    """
    faults = [f"tests/{name} has no budget in CONTRIBUTING.md" for name in spent.keys() - allowed]
    used = {name: spent[name] / allowed[name] for name in spent.keys() & allowed}
    most = FACTOR * max(1.0, median(used.values() or [0.0]))
    faults += [
        f"tests/{name} took {spent[name]:.0f} s, more than {most:.2g} times its budget of "
        f"{allowed[name]} s"
        for name, times in used.items()
        if times > most
    ]
    return sorted(faults)

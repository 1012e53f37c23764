"""Interleaved memory, asked of the kernel itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.programs import PYTHON, run, script

START = """
import sys
from cputrain.launch.process import Start, run
run(Start(program=sys.executable, argv=(sys.executable, "count.py"), environment={{}}, cpus=None,
          interleave={nodes}), [], quiet=False)
"""

COUNT = """
with open("/proc/self/numa_maps") as maps:
    print(sum("interleave:" in line for line in maps))
"""


@pytest.mark.parametrize(("nodes", "granted"), [((0,), True), ((1022,), False)])
def test_pages_are_interleaved_where_the_nodes_exist(
    tmp_path: Path, nodes: tuple[int, ...], granted: bool
) -> None:
    """The policy survives exec; a refusal is one line, and the program runs without."""
    (tmp_path / "count.py").write_text(COUNT)
    script(tmp_path, START.format(nodes=nodes))
    done = run((PYTHON, "x.py"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (int(done.stdout) > 0) is granted
    assert len(done.stderr.splitlines()) == (0 if granted else 1)
    assert granted or "interleaved memory was refused" in done.stderr

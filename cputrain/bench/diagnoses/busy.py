"""Diagnose workloads beside busy processes and check the figures.

Figures must be physically possible, and marked as rough where other processes disturbed them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from cputrain.bench import workloads
from cputrain.bench.diagnoses.impossible import impossible_figures, text_of_page
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

SPIN = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    sum(range(1 << 20))
"""
"""Script of a busy process: print a line, then spin until its parent exits."""


class BusyDiagnosis(Record):
    """Result of diagnosing one script beside busy processes."""

    name: str
    """Name of the workload."""

    impossible: tuple[str, ...]
    """Physically impossible figures."""

    rough: tuple[str, ...]
    """Reasons why the diagnosis marks its figures as rough."""

    reached: str
    """FLOP/s that the script reached, as the report displays it."""

    measurements: int
    """Number of times the roof was measured."""

    elapsed_s: float
    """Duration of the diagnosis in seconds."""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` spinning processes inside the context; all of them have started on entry."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-S", "-c", SPIN], stdout=subprocess.PIPE, text=True
            )
            processes.append(process)
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"a busy process exited with code {process.wait()}")
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def diagnose_script(name: str, script: Sequence[str], cache: str) -> BusyDiagnosis:
    """Diagnose a script and search the JSON document, reports and page for impossible figures.

    Args:
        name: Name of the workload.
        script: Path of the script and its arguments.
        cache: Folder in which cputrain keeps the measured roof.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "COLUMNS": "200"}
    command = [sys.executable, "-P", "-m", "cputrain.launch"]
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        json_path, html_path = Path(folder, "run.json"), Path(folder, "run.html")
        json_path.write_text(_output([*command, "diagnose", "--json", *script], environment))
        elapsed_s = time.perf_counter() - start_s
        text = _output([*command, "report", str(json_path)], environment)
        comparison_text = _output([*command, "report", str(json_path), str(json_path)], environment)
        _output([*command, "report", "--html", str(html_path), str(json_path)], environment)
        renderings = (text, comparison_text, text_of_page(html_path.read_text()))
        document: dict[str, Any] = json.loads(json_path.read_text())
    impossible = impossible_figures(document, *renderings)
    if document["rough"] and any(
        "Figures are rough" not in " ".join(rendering.split()) for rendering in renderings
    ):
        impossible.append("a rendering does not mark rough figures as rough")
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    return BusyDiagnosis(
        name=name, impossible=tuple(impossible), rough=tuple(document["rough"]),
        reached=next((line[1].strip() for line in lines if line[:1] == ["reached"]), ""),
        measurements=document["roof"]["measurements"], elapsed_s=elapsed_s,
    )  # fmt: skip


def main(names: Sequence[str], count: int) -> int:
    """Diagnose each workload beside `count` busy processes and print a table.

    Returns:
        Exit code: 1 if any figure is impossible, else 0.
    """
    rows: list[BusyDiagnosis] = []
    with busy_processes(count):
        for name in names:
            with (
                tempfile.TemporaryDirectory() as cache
            ):  # empty, so that each diagnosis measures the roof
                rows.append(diagnose_script(name, [str(workloads()[name])], cache))
            print(json.dumps(rows[-1].as_json()), file=sys.stderr, flush=True)
    print("| workload | reached | impossible figures | rough | roof measured | duration |")
    print("| --- | --- | --: | --- | --: | --: |")
    for row in rows:
        rough = "yes" if row.rough else "no"
        print(f"| {row.name} | {row.reached} | {len(row.impossible)} | {rough} | "
              f"{row.measurements} times | {row.elapsed_s:.0f} s |")  # fmt: skip
    return 1 if any(row.impossible for row in rows) else 0


def _output(command: list[str], environment: dict[str, str]) -> str:
    """Run a command and return its stdout; exit with its stderr if it fails."""
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode:
        raise SystemExit(
            f"{' '.join(command)} failed with exit code {process.returncode}:\n{process.stderr}"
        )
    return process.stdout

"""Diagnose beside busy processes: figures must be possible, and disturbed ones marked as rough."""

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

    impossible: tuple[str, ...]
    """Physically impossible figures."""

    rough: tuple[str, ...]
    """Reasons why the diagnosis marks its figures as rough."""

    reached: str
    """Reached FLOP/s of the script, as displayed."""

    measurements: int
    """Number of times the roof was measured."""

    elapsed_s: float


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run the given number of spinning processes; all have started on entry."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-S", "-c", SPIN], stdout=subprocess.PIPE, text=True
            )
            processes.append(process)
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"a busy process ended with {process.wait()}")
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def diagnose_script(name: str, words: Sequence[str], cache: str) -> BusyDiagnosis:
    """Diagnose a script with the given cache folder and check all renderings of the diagnosis."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "COLUMNS": "200"}
    command = [sys.executable, "-P", "-m", "cputrain.launch"]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kept, page = Path(folder, "run.json"), Path(folder, "run.html")
        kept.write_text(_output([*command, "diagnose", "--json", *words], environment))
        elapsed_s = time.perf_counter() - began
        text = _output([*command, "report", str(kept)], environment)
        both = _output([*command, "report", str(kept), str(kept)], environment)
        _output([*command, "report", "--html", str(page), str(kept)], environment)
        shown = (text, both, text_of_page(page.read_text()))
        document: dict[str, Any] = json.loads(kept.read_text())
    wrong = impossible_figures(document, *shown)
    if document["rough"] and any("Figures are rough" not in " ".join(t.split()) for t in shown):
        wrong.append("what is rough is not said to be rough")
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    return BusyDiagnosis(
        name=name, impossible=tuple(wrong), rough=tuple(document["rough"]),
        reached=next((line[1].strip() for line in lines if line[:1] == ["reached"]), ""),
        measurements=document["roof"]["measurements"], elapsed_s=elapsed_s,
    )  # fmt: skip


def main(names: Sequence[str], count: int) -> int:
    """Diagnose each workload beside `count` busy processes and print a table."""
    rows: list[BusyDiagnosis] = []
    with busy_processes(count):
        for name in names:
            with tempfile.TemporaryDirectory() as cache:  # each measures the roof
                rows.append(diagnose_script(name, [str(workloads()[name])], cache))
            print(json.dumps(rows[-1].as_json()), file=sys.stderr, flush=True)
    print("| workload | reached | impossible figures | rough | measured | |")
    print("| --- | --- | --: | --- | --: | --: |")
    for row in rows:
        rough = "yes" if row.rough else "no"
        print(f"| {row.name} | {row.reached} | {len(row.impossible)} | {rough} | "
              f"{row.measurements} times | {row.elapsed_s:.0f} s |")  # fmt: skip
    return 1 if any(row.impossible for row in rows) else 0


def _output(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout

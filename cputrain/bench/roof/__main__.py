"""Compare the roof measured by diagnose with torch.mm over many sizes and STREAM in C.

    python -m cputrain.bench.roof --rounds 3

Each round measures the roof in a subprocess, as diagnose does; the fastest of torch's matrix
products, square and rectangular, over many sizes; and STREAM's copy, scale, add and triad, compiled
for this machine. The output has the ratio of the roof to the best of the others, median over
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from cputrain.bench.compare import median
from cputrain.diagnose.roof import measure_roof
from cputrain.machine import read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PRODUCTS = """
import json, sys, time, torch
from cputrain.diagnose.roof_benchmark import fastest_seconds as best
threads = int(sys.argv[1]); torch.set_num_threads(threads)
found = {}
for name in ("float32", "bfloat16"):
    dtype = getattr(torch, name)
    for m, n, k in [(s, s, s) for s in (512, 768, 1024, 1536, 2048, 3072, 4096)] + [
        (256, 4096, 1024), (4096, 256, 4096), (1024, 4096, 512), (8192, 1024, 1024)
    ]:
        a, b = torch.full((m, k), 0.5, dtype=dtype), torch.full((k, n), 0.5, dtype=dtype)
        out = torch.empty((m, n), dtype=dtype)
        rate = 2 * m * n * k / best(lambda: torch.mm(a, b, out=out), 0.3)
        found[name] = max(found.get(name, 0.0), rate)
print(json.dumps(found))
"""


def main(argv: list[str]) -> int:
    """Run the rounds and print the ratios as JSON."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.roof")
    parser.add_argument("--rounds", type=int, default=3, help="each measures every way once")
    rounds = parser.parse_args(argv).rounds
    every = list(_rounds(rounds))
    print(json.dumps({
        "rounds": every,
        "part": {name: median([one[name]["part"] for one in every]) for name in every[0]},
    }, indent=1))  # fmt: skip
    return 0


def _rounds(rounds: int) -> Iterator[dict[str, dict[str, float]]]:
    machine = read_machine()
    cores = max(1, machine.budget.physical_cores)
    largest = sum(one.size_bytes or 0 for one in machine.topology.l3_domains)
    elements = max(1 << 24, 4 * largest // 8)
    with tempfile.TemporaryDirectory() as folder, as_file(files(__package__)) as own:
        stream = Path(folder, "stream")
        subprocess.run(
            ["cc", "-O3", "-march=native", "-fopenmp", str(own / "stream.c"), "-o", str(stream)],
            check=True,
        )
        for _ in range(rounds):
            roof = measure_roof(machine)
            products = _json([sys.executable, "-P", "-c", PRODUCTS, str(cores)])
            streams = _json([str(stream), str(elements), "10"], OMP_NUM_THREADS=str(cores))
            found = {
                name: (roof.flops(name, cores), products[name]) for name in ("float32", "bfloat16")
            }
            found["memory"] = (roof.streaming(cores), max(streams.values()))
            yield {
                name: {"roof": ours, "best": best, "part": ours / best}
                for name, (ours, best) in found.items()
            }


def _json(command: list[str], **environment: str) -> dict[str, float]:
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

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
from statistics import median

from cputrain.diagnose.roof import measure_roof
from cputrain.machine import read_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PRODUCTS = """
import json, sys, time, torch
from cputrain.diagnose.roof_benchmark import fastest_seconds as best
threads = int(sys.argv[1]); torch.set_num_threads(threads)
rates = {}
for name in ("float32", "bfloat16"):
    dtype = getattr(torch, name)
    for m, n, k in [(s, s, s) for s in (512, 768, 1024, 1536, 2048, 3072, 4096)] + [
        (256, 4096, 1024), (4096, 256, 4096), (1024, 4096, 512), (8192, 1024, 1024)
    ]:
        a, b = torch.full((m, k), 0.5, dtype=dtype), torch.full((k, n), 0.5, dtype=dtype)
        out = torch.empty((m, n), dtype=dtype)
        rate = 2 * m * n * k / best(lambda: torch.mm(a, b, out=out), 0.3)
        rates[name] = max(rates.get(name, 0.0), rate)
print(json.dumps(rates))
"""
"""Script that prints the highest FLOP/s of torch.mm by dtype; takes the number of threads."""


def main(argv: list[str]) -> int:
    """Run the rounds and print rates and ratios as JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.roof")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    rounds = parser.parse_args(argv).rounds
    results = list(_measure_rounds(rounds))
    print(json.dumps({
        "rounds": results,
        "part": {name: median([result[name]["part"] for result in results]) for name in results[0]},
    }, indent=1))  # fmt: skip
    return 0


def _measure_rounds(rounds: int) -> Iterator[dict[str, dict[str, float]]]:
    """Yield for each round the roof, the best other rate and their ratio, by resource."""
    machine = read_machine()
    num_cores = max(1, machine.budget.physical_cores)
    l3_bytes = sum(cache.size_bytes or 0 for cache in machine.topology.l3_domains)
    num_elements = max(1 << 24, 4 * l3_bytes // 8)
    with tempfile.TemporaryDirectory() as folder, as_file(files(__package__)) as package_folder:
        stream = Path(folder, "stream")
        subprocess.run(
            ["cc", "-O3", "-march=native", "-fopenmp", str(package_folder / "stream.c"),
             "-o", str(stream)],
            check=True,
        )  # fmt: skip
        for _ in range(rounds):
            roof = measure_roof(machine)
            products = _run_json([sys.executable, "-P", "-c", PRODUCTS, str(num_cores)])
            streams = _run_json(
                [str(stream), str(num_elements), "10"], OMP_NUM_THREADS=str(num_cores)
            )
            rates = {
                name: (roof.flops(name, num_cores), products[name])
                for name in ("float32", "bfloat16")
            }
            rates["memory"] = (roof.streaming(num_cores), max(streams.values()))
            yield {
                name: {"roof": roof_rate, "best": best_rate, "part": roof_rate / best_rate}
                for name, (roof_rate, best_rate) in rates.items()
            }


def _run_json(command: list[str], **environment: str) -> dict[str, float]:
    """Run a command with additional environment variables and parse its stdout as JSON."""
    process = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    rates: dict[str, float] = json.loads(process.stdout)
    return rates


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Cost of `launch --learn`: times of whole runs without it and with it, in turns.

    python -m cputrain.bench.learning gan:60 mlp:5000

Each run begins with an empty cache, so that nothing is known. Above 1, learning has paid.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from cputrain.bench import workloads
from cputrain.measure.rounds import round_order
from cputrain.measure.statistics import summarize_ratios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_ROUNDS = 5

LAUNCH = (sys.executable, "-P", "-m", "cputrain.launch", "launch", "--quiet")


def run_time_s(options: Sequence[str], workload: str, num_steps: str) -> float:
    """Return the time of a whole run of a workload, started with an empty cache."""
    script = str(workloads()[workload])
    with tempfile.TemporaryDirectory(prefix="cputrain-learn-") as cache:
        started_at = time.perf_counter()
        subprocess.run(
            (*LAUNCH, *options, script, "--steps", num_steps),
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return time.perf_counter() - started_at


def main() -> None:
    """Print the ratio of each workload, given with its number of steps."""
    for word in sys.argv[1:]:
        workload, _, num_steps = word.partition(":")
        ratios = []
        for number in range(NUM_ROUNDS):
            times_s = {
                options: run_time_s(options, workload, num_steps)
                for options in round_order(((), ("--learn",)), number)
            }
            ratios.append(times_s[()] / times_s["--learn",])
        ratio = summarize_ratios(ratios)
        print(
            f"{workload}, {num_steps} steps: {ratio.median:.3f} "
            f"({ratio.lowest:.3f} to {ratio.highest:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()

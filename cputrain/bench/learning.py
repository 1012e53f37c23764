"""Cost of `launch --learn`: times of whole runs without it and with it, in turns.

    python -m cputrain.bench.learning gan:60 mlp:5000 "train.py --epochs 3"

Each run begins with an empty cache, so that nothing is known. Above 1, learning has paid.
"""

from __future__ import annotations

import os
import shlex
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


def command_of(word: str) -> list[str]:
    """Return a script and its arguments, of a workload with its number of steps or as given."""
    workload, _, num_steps = word.partition(":")
    path = workloads().get(workload)
    return [str(path), "--steps", num_steps] if path else shlex.split(word)


def run_time_s(options: Sequence[str], command: Sequence[str]) -> float:
    """Return the time of a whole run of a script, started with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="cputrain-learn-") as cache:
        started_at = time.perf_counter()
        subprocess.run(
            (*LAUNCH, *options, *command),
            env={**os.environ, "XDG_CACHE_HOME": cache},
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return time.perf_counter() - started_at


def main() -> None:
    """Print the ratio of each workload, given with its number of steps, and of each script."""
    for word in sys.argv[1:]:
        command = command_of(word)
        ratios = []
        for number in range(NUM_ROUNDS):
            times_s = {
                options: run_time_s(options, command)
                for options in round_order(((), ("--learn",)), number)
            }
            ratios.append(times_s[()] / times_s["--learn",])
        ratio = summarize_ratios(ratios)
        print(
            f"{word}: {ratio.median:.3f} ({ratio.lowest:.3f} to {ratio.highest:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Cost of `launch --reproducible`: step times beside those of other launches, and stamps.

    python -m cputrain.bench.reproducible --rounds 3 --shards 2,16 gpt:5 "train.py --epochs 1"

A round is a launch without it, one with replicas, and one for each number of shards. Costs are the
median step for that of the faster of the two others. Each stamp is of a run on all cores; "differs"
tells that a run on one core had another.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from statistics import median

from cputrain.bench.learning import command_of
from cputrain.bench.measurement import parse_report
from cputrain.measure.rounds import round_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LAUNCH = (sys.executable, "-P", "-m", "cputrain.launch", "launch")

OTHERS: tuple[tuple[str, ...], ...] = ((), ("--replicas", "auto"))
"""Options of the launches without it."""

STAMP = re.compile(r"weights ([0-9a-f]+)")


def run(
    options: Sequence[str], command: Sequence[str], *, one_core: bool = False
) -> tuple[float, str]:
    """Launch a script; return its median step in seconds, and its stamp."""

    def pin() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    done = subprocess.run(
        (*LAUNCH, *options, *command), capture_output=True, text=True, check=True,
        preexec_fn=pin if one_core else None,
    )  # fmt: skip
    line = STAMP.search(done.stderr)
    return median(parse_report(done.stdout)[0]), "" if line is None else line[1]


def compare(word: str, rounds: int, shards: Sequence[str]) -> str:
    """Return a row: for each number of shards, the cost and the stamp."""
    command = command_of(word)
    ways = (*OTHERS, *(("--reproducible", count) for count in shards))
    times_s: dict[tuple[str, ...], list[float]] = defaultdict(list)
    stamps: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for number in range(rounds):
        for way in round_order(ways, number):
            step_s, stamp = run(way, command)
            times_s[way].append(step_s)
            stamps[way].add(stamp)
    cells = [word]
    for way in ways[len(OTHERS) :]:
        costs = sorted(
            step_s / min(times_s[options][number] for options in OTHERS)
            for number, step_s in enumerate(times_s[way])
        )
        stamps[way].add(run(way, command, one_core=True)[1])
        stamp = next(iter(stamps[way])) if len(stamps[way]) == 1 else "differs"
        cells += [f"{median(costs):.2f} ({costs[0]:.2f} to {costs[-1]:.2f})", f"`{stamp}`"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a row for each script or workload, given with its number of steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="+", metavar="WORKLOAD:STEPS|SCRIPT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", default="16", help="numbers of shards")
    options = parser.parse_args()
    shards = options.shards.split(",")
    print("| | " + " | ".join(f"{count} shards | stamp" for count in shards) + " |")
    print("| ---" + " | ---: | ---" * len(shards) + " |")
    for word in options.words:
        print(compare(word, options.rounds, shards), flush=True)


if __name__ == "__main__":
    main()

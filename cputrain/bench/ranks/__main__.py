"""Compare torchrun and cputrain launch with several ranks on one node, or all-reduce alone.

python -m cputrain.bench.ranks --ranks 2 --rounds 3 [--layers 6 … options of the script]
python -m cputrain.bench.ranks --adding --ranks 2,4 --rounds 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from cputrain.bench import as_markdown, compare
from cputrain.machine import read_machine

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")

LAUNCH = (sys.executable, "-P", "-m", "cputrain.launch", "launch", "--standalone")

TRAIN, ADDING = "cputrain.bench.ranks.train", "cputrain.bench.ranks.adding"


def main(argv: list[str]) -> int:
    """Run the comparisons and print tables."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.ranks")
    parser.add_argument("--ranks", default="2", help="how many of them: 2,4")
    parser.add_argument("--rounds", type=int, default=3, help="each runs every way once")
    parser.add_argument("--adding", action="store_true", help="only add up tensors of many sizes")
    asked, words = parser.parse_known_args(argv)
    machine = read_machine()
    for ranks in map(int, asked.ranks.split(",")):
        count = f"--nproc-per-node={ranks}"
        if asked.adding:
            print(f"{ranks} ranks: median, least and most ms", flush=True)
            words = ["-q", count, "-m", ADDING, "--rounds", str(asked.rounds)]
            subprocess.run([*LAUNCH, *words], check=True)
            continue
        train = ("-m", TRAIN, *words)
        comparison = compare(
            {
                "torchrun": (*TORCHRUN, count, *train),
                "cputrain launch": (*LAUNCH, count, *train),
                "--gradient-exchange torch": (
                    *LAUNCH, count, "--gradient-exchange", "torch", *train
                ),
            },
            repeats=asked.rounds,
        )  # fmt: skip
        print(as_markdown(comparison, title=f"{ranks} ranks", machine_line=machine.fingerprint()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

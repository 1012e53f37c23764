"""Compare torchrun and cputrain launch with several ranks on one node, or time all-reduce alone.

python -m cputrain.bench.ranks --ranks 2 --rounds 3 [--layers 6 … options of train.py]
python -m cputrain.bench.ranks --adding --ranks 2,4 --rounds 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from cputrain.bench import as_markdown, compare
from cputrain.machine import read_machine

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
"""Command line of torchrun on one node."""

LAUNCH = (sys.executable, "-P", "-m", "cputrain.launch", "launch", "--standalone")
"""Command line of cputrain launch on one node."""

TRAIN, ALL_REDUCE = "cputrain.bench.ranks.train", "cputrain.bench.ranks.all_reduce"
"""Modules that each rank runs."""


def main(argv: list[str]) -> int:
    """Run the comparison for each number of ranks and print tables; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.ranks")
    parser.add_argument("--ranks", default="2", help="numbers of ranks: 2,4")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument(
        "--adding", action="store_true", help="only time all-reduce over many tensor sizes"
    )
    args, script_args = parser.parse_known_args(argv)
    machine = read_machine()
    for num_ranks in map(int, args.ranks.split(",")):
        nproc_option = f"--nproc-per-node={num_ranks}"
        if args.adding:
            print(f"{num_ranks} ranks: median, minimum and maximum in ms", flush=True)
            script_args = ["-q", nproc_option, "-m", ALL_REDUCE, "--rounds", str(args.rounds)]
            subprocess.run([*LAUNCH, *script_args], check=True)
            continue
        train_command = ("-m", TRAIN, *script_args)
        comparison = compare(
            {
                "torchrun": (*TORCHRUN, nproc_option, *train_command),
                "cputrain launch": (*LAUNCH, nproc_option, *train_command),
                "--gradient-exchange torch": (
                    *LAUNCH, nproc_option, "--gradient-exchange", "torch", *train_command
                ),
            },
            repeats=args.rounds,
        )  # fmt: skip
        print(as_markdown(comparison, title=f"{num_ranks} ranks", machine_line=machine.summary()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
